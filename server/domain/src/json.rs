//! Rules for JSON bodies beyond their types' parsers: no duplicate key, bounded nesting, and no key
//! reserved by `serde_json`. Parts that are stored as text would otherwise accept all three.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_path_to_error::{Deserializer as PathDeserializer, Path, Segment, Track};

pub const DEPTH_MAX: u16 = 100;

/// `serde_json` reads an object with such a key as a number or raw text, so stored text would
/// change its meaning when parsed.
const RESERVED: &str = "$serde_json::private::";

/// A value of ours that cannot be written as JSON. Storing incomplete text would lose data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a value cannot be written as JSON: {0}")]
pub struct Unserializable(String);

pub fn text(value: &impl Serialize) -> Result<String, Unserializable> {
    serde_json::to_string(value).map_err(|error| Unserializable(error.to_string()))
}

/// The initial capacity saves copies while the text grows.
pub fn text_with_room(room: usize, value: &impl Serialize) -> Result<String, Unserializable> {
    let mut text = Vec::with_capacity(room);
    serde_json::to_writer(&mut text, value).map_err(|error| Unserializable(error.to_string()))?;
    String::from_utf8(text).map_err(|error| Unserializable(error.to_string()))
}

pub fn raw(text: String) -> Result<Box<RawValue>, Unserializable> {
    RawValue::from_string(text).map_err(|error| Unserializable(error.to_string()))
}

/// Removes whitespace between tokens. Strings and digits of numbers stay unchanged.
pub fn compact(text: &str) -> String {
    let mut compact = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for character in text.chars() {
        if in_string || !matches!(character, ' ' | '\t' | '\n' | '\r') {
            compact.push(character);
        }
        if character == '"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && character == '\\' && !escaped;
    }
    compact
}

/// True if two JSON texts have the same meaning. Whitespace, key order and escapes do not matter;
/// numbers must have the same digits. Builds no tree, which would take many times the memory of the
/// text.
pub fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.trim(), other.trim());
    if one == other {
        return true;
    }
    match (fields(one), fields(other)) {
        // Most definitions that differ do so in a short field, and their long fields are identical.
        (Some(one), Some(other)) => {
            let is_same = |(key, value): (&String, &&RawValue)| {
                other.get(key).is_some_and(|found: &&RawValue| same_value(value.get(), found.get()))
            };
            one.len() == other.len() && one.iter().all(is_same)
        }
        (None, None) => same_value(one, other),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn fields(text: &str) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

fn same_value(one: &str, other: &str) -> bool {
    one == other || canonical(one).is_some_and(|one| canonical(other).is_some_and(|other| one == other))
}

fn canonical(text: &str) -> Option<Vec<u8>> {
    let mut written = Vec::with_capacity(text.len());
    let mut parser = serde_json::Deserializer::from_str(text);
    Canonical(&mut written).deserialize(&mut parser).ok()?;
    parser.end().ok()?;
    Some(written)
}

/// Writes a value without whitespace, with a comma after each item and sorted keys.
struct Canonical<'w>(&'w mut Vec<u8>);

impl Canonical<'_> {
    fn write<E: serde::de::Error>(self, value: &(impl Serialize + ?Sized)) -> Result<(), E> {
        serde_json::to_writer(self.0, value).map_err(E::custom)
    }
}

impl<'de> DeserializeSeed<'de> for Canonical<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Canonical<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.write(&value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.write(&value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.write(&value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.write(&value)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.write(value)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.write(&())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self(out) = self;
        out.push(b'[');
        while items.next_element_seed(Canonical(&mut *out))?.is_some() {
            out.push(b',');
        }
        out.push(b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Self(out) = self;
        let (start, mut members) = (out.len(), Vec::new());
        out.push(b'{');
        while let Some(key) = entries.next_key::<String>()? {
            if key.starts_with(RESERVED) {
                // The parser passes the digits of a number with this key.
                out.truncate(start);
                out.extend_from_slice(entries.next_value::<String>()?.as_bytes());
                return Ok(());
            }
            let from = out.len();
            Canonical(&mut *out).write::<A::Error>(&key)?;
            out.push(b':');
            entries.next_value_seed(Canonical(&mut *out))?;
            out.push(b',');
            members.push((key, from..out.len()));
        }
        if !members.is_sorted_by(|(one, _), (other, _)| one <= other) {
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            let mut sorted = Vec::with_capacity(out.len() - start);
            members.into_iter().for_each(|(_, place)| sorted.extend_from_slice(&out[place]));
            out.truncate(start + 1);
            out.append(&mut sorted);
        }
        out.push(b'}');
        Ok(())
    }
}

/// Why and in which field a text is invalid.
#[derive(Debug, thiserror::Error)]
pub struct NotAcceptable {
    /// Empty if the error is outside any field.
    path: String,
    #[source]
    error: serde_json::Error,
}

impl fmt::Display for NotAcceptable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "`{}`: ", self.path)?;
        }
        let (said, line, column) = (self.error.to_string(), self.error.line(), self.error.column());
        // The parser's messages for these mistakes do not mention text encoding.
        match said.split(" at line ").next() {
            Some("lone leading surrogate in hex escape" | "unexpected end of hex escape") => {
                write!(f, "half of a surrogate pair at line {line} column {column}: ")?;
                f.write_str(r"send both halves, as in \ud83d\ude00, or the character in UTF-8")
            }
            Some("invalid unicode code point") => {
                write!(f, "a text that is not UTF-8 at line {line} column {column}: send the body in UTF-8")
            }
            _ => f.write_str(&said),
        }
    }
}

pub fn check(text: &[u8]) -> Result<(), NotAcceptable> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let strict = Strict { text, depth: 0 };
    strict.deserialize(&mut parser).and_then(|()| parser.end()).map_err(|error| {
        // Parses again with the path, which costs a copy of each key.
        let (mut track, mut parser) = (Track::new(), serde_json::Deserializer::from_slice(text));
        let again = strict.deserialize(PathDeserializer::new(&mut parser, &mut track));
        NotAcceptable { path: again.err().map_or_else(String::new, |_| named(&track.path())), error }
    })
}

/// Returns the enclosing object if the key is unreadable.
fn named(path: &Path) -> String {
    let text = path.to_string();
    match path.iter().next_back() {
        None => String::new(),
        Some(Segment::Unknown) => text.trim_end_matches('?').trim_end_matches('.').to_owned(),
        Some(_) => text,
    }
}

#[derive(Clone, Copy)]
struct Strict<'t> {
    text: &'t [u8],
    depth: u16,
}

impl Strict<'_> {
    /// True if a key lies in the text. Otherwise the parser made it up for the digits of a number.
    fn has(&self, key: &str) -> bool {
        self.text.as_ptr_range().contains(&key.as_ptr())
    }

    fn inner(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    fn check_depth<E: serde::de::Error>(self) -> Result<(), E> {
        if self.depth == DEPTH_MAX {
            return Err(E::custom(format_args!("the body is nested more than {DEPTH_MAX} levels deep")));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
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
        self.check_depth()?;
        while items.next_element_seed(self.inner())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = Keys::default();
        while let Some(Key(key)) = entries.next_key()? {
            if key.starts_with(RESERVED) {
                if matches!(key, Cow::Borrowed(key) if !self.has(key)) {
                    return entries.next_value::<IgnoredAny>().map(drop);
                }
                return Err(serde::de::Error::custom(format_args!("the key {key:?} is reserved; choose another name")));
            }
            self.check_depth()?;
            if seen.contains(&key) {
                return Err(serde::de::Error::custom(format_args!("the key {key:?} occurs twice in one object")));
            }
            seen.add(key);
            entries.next_value_seed(self.inner())?;
        }
        self.check_depth()
    }
}

/// A key borrowed from the text unless escaped. Serde's own `Cow` always copies.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(key)))
            }

            fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(key.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Up to this number, comparing keys one by one is faster than hashing.
const FEW_KEYS: usize = 24;

#[derive(Default)]
struct Keys<'de> {
    few: Vec<Cow<'de, str>>,
    many: HashSet<Cow<'de, str>>,
}

impl<'de> Keys<'de> {
    fn contains(&self, key: &str) -> bool {
        self.few.iter().any(|seen| seen == key) || (!self.many.is_empty() && self.many.contains(key))
    }

    fn add(&mut self, key: Cow<'de, str>) {
        if self.few.len() < FEW_KEYS {
            self.few.push(key);
        } else {
            self.many.insert(key);
        }
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
    fn refusal_names_the_field() {
        for (text, refusal) in [
            (r#"{"a": {"b": ["", "\ud800"]}}"#, r"`a.b[1]`: half of a surrogate pair at line 1 column"),
            (r#"{"a": "\udc00x"}"#, "`a`: half of a surrogate pair"),
            (r#"{"a": "\ud800\u0041"}"#, "`a`: half of a surrogate pair"),
            (r#"{"a": {"\ud800": 1}}"#, "`a`: half of a surrogate pair"),
            (r#"{"a": [{"k": 1, "k": 2}]}"#, r#"`a[0]`: the key "k" occurs twice"#),
            (r#"{"a": 1, "b": 01}"#, "`b`: "),
            (r#"{"a": 1,"#, "EOF while parsing"),
            ("", "EOF while parsing"),
            ("{} {}", "trailing characters"),
        ] {
            let error = check(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(refusal), "{text}: {error}");
        }
        let error = check(b"{\"a\": [\"\xff\"]}").unwrap_err().to_string();
        assert!(error.starts_with("`a[0]`: a text that is not UTF-8 at line 1 column"), "{error}");
        assert!(error.ends_with("send the body in UTF-8"), "{error}");
    }

    #[test]
    fn reserved_key_is_refused() {
        for key in
            ["$serde_json::private::Number", "$serde_json::private::RawValue", "\\u0024serde_json::private::Number"]
        {
            for text in [format!(r#"{{"a":[{{"{key}":"1"}}]}}"#), format!(r#"{{"b":1,"{key}":"{{"}}"#)] {
                let error = check(text.as_bytes()).unwrap_err().to_string();
                assert!(error.contains("private::") && error.contains("is reserved"), "{text}: {error}");
            }
        }
        check(br#"{"a":"$serde_json::private::Number","$serde_json":[0,-1.5e-3,18446744073709551616]}"#).unwrap();
    }

    #[test]
    fn duplicate_key_is_found_in_any_position_and_spelling() {
        let many: String = (0..FEW_KEYS * 2).map(|number| format!("\"k{number}\":{number},")).collect();
        check(format!("{{{many}\"other\":1}}").as_bytes()).unwrap();
        for again in ["k0", "k23", "k24", "k47", "\\u006b5"] {
            let error = check(format!("{{{many}\"{again}\":1}}").as_bytes()).unwrap_err().to_string();
            assert!(error.contains("occurs twice"), "{again}: {error}");
        }
        check(br#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]}"#).unwrap();
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(nested(usize::from(DEPTH_MAX)).as_bytes()).unwrap();
        assert!(check(nested(usize::from(DEPTH_MAX) + 1).as_bytes()).is_err());
        let around = |inner: &str| format!("{}{inner}{}", "[".repeat(100), "]".repeat(100));
        check(around("1.5").as_bytes()).unwrap();
        assert!(check(around("{}").as_bytes()).is_err() && check(around("{\"a\":1}").as_bytes()).is_err());
        assert!(check(nested(1_000_000).as_bytes()).is_err());
    }

    #[test]
    fn unserializable_value_is_error() {
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
    fn compact_text_is_minimal_and_equivalent() {
        for (text, compacted) in [
            ("", ""),
            (" 1.50 ", "1.50"),
            ("{ \"a b\" : [ 1 ,\n2\t] ,\r\"c\":null }", r#"{"a b":[1,2],"c":null}"#),
            (r#"[ "a \" b" , "\\" , " " ]"#, r#"["a \" b","\\"," "]"#),
            (r#"[ "\\\" " , "é\u0020 " ]"#, r#"["\\\" ","é\u0020 "]"#),
        ] {
            assert_eq!(compact(text), compacted);
            assert_eq!(compact(compacted), compacted);
        }
        let text = r#" { "k\\" : [ "x \\\" y" , { "b" : -0.0e-1 } ] } "#;
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&compact(text)), value(text));
    }

    #[test]
    fn equivalent_texts_are_same_in_any_spelling() {
        for (one, other, is_same) in [
            (r#"{"a":1,"b":[2.0,{"c":null,"d":""}]}"#, r#" {"b" : [2.0, {"d": "", "c" :null}] , "a" : 1} "#, true),
            (r#"{"\u0061":"\u00e9\/"}"#, r#"{"a":"é/"}"#, true),
            (r#"{"a":1}"#, r#"{"a":2}"#, false),
            (r#"{"a":1}"#, r#"{"b":1}"#, false),
            (r#"{"a":1}"#, r#"{"a":1,"b":1}"#, false),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#, false),
            (r#"{"a":[1]}"#, r#"{"a":[1,1]}"#, false),
            (r#"{"a":[]}"#, r#"{"a":{}}"#, false),
            (r#"[{"b":[{"d":1,"c":2}],"a":3}]"#, r#"[{"a":3,"b":[{"c":2,"d":1}]}]"#, true),
            (r#"[{"b":1,"a":2}]"#, r#"[{"a":1,"b":2}]"#, false),
            (r#"[[1],2]"#, r#"[[1,2]]"#, false),
            (r#"[{"a":{"b":1}}]"#, r#"[{"a":{},"b":1}]"#, false),
            (r#"["1,"]"#, "[1]", false),
            (r#"{"a":"1"}"#, r#"{"a":1}"#, false),
            (r#"{"a":" b"}"#, r#"{"a":"b"}"#, false),
            ("[1e5,-0.50]", "[1E+5,-0.50]", true),
            ("[1.0]", "[1]", false),
            ("[-1]", "[1]", false),
            ("true", " true ", true),
            ("true", "false", false),
            ("123456789012345678901234567890", "123456789012345678901234567891", false),
            ("{", "{ ", true),
            ("{", "{}", false),
        ] {
            assert_eq!((same(one, other), same(other, one)), (is_same, is_same), "{one} and {other}");
        }
    }

    #[test]
    fn deeply_nested_difference_is_found() {
        let (open, closed) = ("[".repeat(90), "]".repeat(90));
        let text = |last: u8| format!("{open}{}{last}{closed}", "1,".repeat(20_000));
        assert!(same(&text(1), &text(1).replace(',', ", ")));
        assert!(!same(&text(1), &text(2)));
    }
}
