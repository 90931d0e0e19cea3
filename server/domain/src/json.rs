//! What JSON a body may be, beyond what the parser of its type checks: no key twice in one object, not nested too
//! deeply. Both are accepted in silence by the parts of a body that are kept as text.

use std::collections::HashSet;
use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// How deeply arrays and objects may be nested in a body.
pub const DEPTH_MAX: u16 = 100;

/// Something of ours that cannot be written as JSON. Storing what is left of it would lose the rest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a value cannot be written as JSON: {0}")]
pub struct Unserializable(String);

/// A value as JSON text.
pub fn text(value: &impl Serialize) -> Result<String, Unserializable> {
    serde_json::to_string(value).map_err(|error| Unserializable(error.to_string()))
}

/// Checks a JSON text; the error is the parser's, with line and column.
pub fn check(text: &[u8]) -> Result<(), serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    Strict { depth: 0 }.deserialize(&mut parser)?;
    parser.end()
}

#[derive(Clone, Copy)]
struct Strict {
    depth: u16,
}

impl Strict {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth == DEPTH_MAX {
            return Err(E::custom(format_args!("the body is nested more than {DEPTH_MAX} levels deep")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<std::borrow::Cow<'de, str>>()? {
            if let Some(key) = seen.replace(key) {
                return Err(serde::de::Error::custom(format_args!("the key {key:?} occurs twice in one object")));
            }
            entries.next_value_seed(inner)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_json_passes() {
        for text in [r#"{}"#, r#"{"a":[1,-2,3.5e400,null,true,{"b":"\u0000"}],"c":12345678901234567890123}"#] {
            check(text.as_bytes()).unwrap();
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_by_name() {
        let error = check(br#"{"a":{"x":1,"y":2,"x":3}}"#).unwrap_err();
        assert!(error.to_string().contains(r#""x" occurs twice"#), "{error}");
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(nested(usize::from(DEPTH_MAX)).as_bytes()).unwrap();
        assert!(check(nested(usize::from(DEPTH_MAX) + 1).as_bytes()).is_err());
        assert!(check(nested(1_000_000).as_bytes()).is_err());
    }

    #[test]
    fn what_cannot_be_written_is_an_error_and_not_an_empty_text() {
        struct Broken;
        impl Serialize for Broken {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("broken"))
            }
        }
        assert_eq!(text(&["a"]).unwrap(), r#"["a"]"#);
        assert_eq!(text(&Broken).unwrap_err().to_string(), "a value cannot be written as JSON: broken");
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in ["", "{", "{}x", "nul", "\u{feff}{}", "{'a':1}"] {
            assert!(check(text.as_bytes()).is_err(), "{text}");
        }
        assert!(check(b"\"\xff\"").is_err());
    }
}
