//! Query strings.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// More than any operation accepts. Query strings are parsed before a signature is checked, and
/// each name is compared with all earlier ones.
const PARAMETERS_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error("the query parameter `{0}` is not UTF-8: send the % sequences of the text's UTF-8 bytes")]
    Encoding(String),
    #[error("the query parameter `{0}` is given twice")]
    Twice(String),
    #[error("the query string has more than {PARAMETERS_MAX} parameters")]
    TooMany,
}

/// A query string, decoded once: `%` sequences, and `+` as a space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Excludes the `?`.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (sent, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(sent).ok_or_else(|| QueryError::Encoding(sent.to_owned()))?;
            let Some(value) = decode(value) else { return Err(QueryError::Encoding(name)) };
            if pairs.iter().any(|(earlier, _)| *earlier == name) {
                return Err(QueryError::Twice(name));
            }
            if pairs.len() == PARAMETERS_MAX {
                return Err(QueryError::TooMany);
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    #[must_use]
    pub fn into_pairs(self) -> Vec<(String, String)> {
        self.0
    }
}

fn decode(text: &str) -> Option<String> {
    percent_decode_str(&text.replace('+', " ")).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_decoded_once_and_repeats_no_name() {
        let query = Query::parse("a=%2525&b=x+y&c&&d=1=2").unwrap();
        assert_eq!(query.get("a"), Some("%25"));
        assert_eq!(query.get("b"), Some("x y"));
        assert_eq!((query.get("c"), query.get("d"), query.get("e")), (Some(""), Some("1=2"), None));
        assert_eq!(Query::parse("a=1&%61=2"), Err(QueryError::Twice("a".into())));
        assert_eq!(Query::parse("b=1&a=%ff"), Err(QueryError::Encoding("a".into())));
        assert_eq!(Query::parse("a%fe=1"), Err(QueryError::Encoding("a%fe".into())));
    }

    #[test]
    fn query_with_too_many_parameters_is_refused() {
        let query = |parameters: usize| (0..parameters).map(|n| format!("{n}=")).collect::<Vec<_>>().join("&");
        assert!(Query::parse(&query(PARAMETERS_MAX)).is_ok());
        for many in [PARAMETERS_MAX + 1, 10_000] {
            assert_eq!(Query::parse(&query(many)), Err(QueryError::TooMany));
        }
    }
}
