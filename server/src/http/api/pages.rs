//! Pages of a list that is ordered by a text: how many entries, and after which.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::http::error::ApiError;

/// Entries of one page at most.
pub const PAGE_MAX: usize = 1_000;
/// What the scopes of the clients or roles in one answer may expand to, in bytes.
pub const EXPANDED_MAX: usize = 64 << 20;

/// Which page is requested.
#[derive(Debug, Default)]
pub struct Page {
    /// How many entries, if the caller limits them.
    pub limit: Option<usize>,
    /// The entry that the page before ended with.
    pub after: Option<String>,
}

impl Page {
    /// Takes the parameters of the query that are about pages.
    pub fn read(query: &[(String, String)]) -> Result<Self, ApiError> {
        let mut page = Self::default();
        for (name, value) in query {
            match name.as_str() {
                "limit" => {
                    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
                    // More than fits a page is as much as fits.
                    let limit = if digits { value.parse().unwrap_or(PAGE_MAX).min(PAGE_MAX) } else { 0 };
                    if limit == 0 {
                        let wrong = format!("the query parameter `{name}` must be a whole number, 1 or more");
                        return Err(ApiError::arguments(wrong));
                    }
                    page.limit = Some(limit);
                }
                "continuationToken" if value.is_empty() => {
                    return Err(ApiError::arguments(format!("the query parameter `{name}` must not be empty")));
                }
                "continuationToken" => page.after = Some(decode(value)?),
                _ => {}
            }
        }
        Ok(page)
    }

    /// How many rows to read so that it shows whether there are more.
    pub fn rows(limit: usize) -> i64 {
        i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
    }

    /// Cuts off the row that only shows that there are more, and gives the token for the next page if there is one.
    pub fn cut<T>(limit: usize, rows: &mut Vec<T>, key: impl Fn(&T) -> &str) -> Option<String> {
        if rows.len() <= limit {
            return None;
        }
        rows.truncate(limit);
        rows.last().map(|last| Self::token(key(last)))
    }

    /// The token for the page after the entry of this key.
    pub fn token(key: &str) -> String {
        URL_SAFE_NO_PAD.encode(key)
    }
}

/// The entries for these rows, with what their scopes expand to: of as many as fit into an answer of so many bytes, because many small
/// ones may assume the same large role, and of one at least. Other requests have turns in between.
pub async fn fitting<'a, T, E>(
    rows: &'a [T],
    max: usize,
    entry: impl Fn(&'a T) -> E,
    expanded: impl Fn(&E) -> usize,
) -> Vec<E> {
    let (mut all, mut size) = (Vec::with_capacity(rows.len()), 0);
    for row in rows {
        let entry = entry(row);
        size += expanded(&entry);
        if size > max && !all.is_empty() {
            break;
        }
        all.push(entry);
        tokio::task::yield_now().await;
    }
    all
}

/// How many bytes scopes take in memory.
pub fn size_of_scopes<S: AsRef<str>>(scopes: impl IntoIterator<Item = S>) -> usize {
    scopes.into_iter().map(|scope| scope.as_ref().len() + size_of::<String>()).sum()
}

fn decode(token: &str) -> Result<String, ApiError> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    // What a database cannot compare was never the key of an entry.
    let text = bytes.filter(|text| !text.contains('\0'));
    text.ok_or_else(ApiError::unknown_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &[(&str, &str)]) -> Result<Page, ApiError> {
        let query: Vec<_> = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Page::read(&query)
    }

    #[test]
    fn a_page_ends_with_a_token_for_the_next_one_or_with_the_list() {
        let mut rows = vec!["a".to_owned(), "b/c".to_owned(), "d".to_owned()];
        assert_eq!(Page::cut(3, &mut rows, |row| row), None);
        let token = Page::cut(2, &mut rows, |row| row).unwrap();
        assert_eq!(rows, ["a", "b/c"]);
        let next = read(&[("limit", "2"), ("continuationToken", &token)]).unwrap();
        assert_eq!((next.limit, next.after.as_deref()), (Some(2), Some("b/c")));
        assert_eq!(Page::rows(2), 3);
    }

    #[test]
    fn pages_have_bounds_and_tokens_are_ours() {
        assert_eq!(read(&[("limit", "5000")]).unwrap().limit, Some(PAGE_MAX));
        assert_eq!(read(&[("limit", "99999999999999999999999")]).unwrap().limit, Some(PAGE_MAX));
        assert!(read(&[("prefix", "x")]).unwrap().limit.is_none());
        for wrong in ["0", "-1", "+1", "x", "", "1.0"] {
            assert!(read(&[("limit", wrong)]).is_err(), "{wrong}");
        }
        for wrong in ["", "?", "_w", "AA"] {
            assert!(read(&[("continuationToken", wrong)]).is_err(), "{wrong}");
        }
    }
}
