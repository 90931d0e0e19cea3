//! Pages of a list ordered by a text key.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::http::error::ApiError;

pub const PAGE_MAX: usize = 1_000;
/// In bytes, per response.
pub const EXPANDED_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub struct Page {
    pub limit: Option<usize>,
    /// Key of the previous page's last entry.
    pub after: Option<String>,
}

impl Page {
    pub fn read(query: &[(String, String)]) -> Result<Self, ApiError> {
        let mut page = Self::default();
        for (name, value) in query {
            match name.as_str() {
                "limit" => {
                    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
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

    /// One more than a page, to detect a next page.
    pub fn rows(limit: usize) -> i64 {
        i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
    }

    /// Removes the extra row and returns the next page's token, if any.
    pub fn cut<T>(limit: usize, rows: &mut Vec<T>, key: impl Fn(&T) -> &str) -> Option<String> {
        if rows.len() <= limit {
            return None;
        }
        rows.truncate(limit);
        rows.last().map(|last| Self::token(key(last)))
    }

    pub fn token(key: &str) -> String {
        URL_SAFE_NO_PAD.encode(key)
    }
}

/// Builds entries up to `max` bytes of expanded scopes, at least one: many small rows may assume
/// the same large role. Yields after each entry.
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

/// In bytes of memory.
pub fn size_of_scopes<S: AsRef<str>>(scopes: impl IntoIterator<Item = S>) -> usize {
    scopes.into_iter().map(|scope| scope.as_ref().len() + size_of::<String>()).sum()
}

fn decode(token: &str) -> Result<String, ApiError> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    // PostgreSQL cannot store NUL.
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
    fn cut_page_has_token_for_next_page() {
        let mut rows = vec!["a".to_owned(), "b/c".to_owned(), "d".to_owned()];
        assert_eq!(Page::cut(3, &mut rows, |row| row), None);
        let token = Page::cut(2, &mut rows, |row| row).unwrap();
        assert_eq!(rows, ["a", "b/c"]);
        let next = read(&[("limit", "2"), ("continuationToken", &token)]).unwrap();
        assert_eq!((next.limit, next.after.as_deref()), (Some(2), Some("b/c")));
        assert_eq!(Page::rows(2), 3);
    }

    #[test]
    fn page_limits_and_tokens_are_checked() {
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
