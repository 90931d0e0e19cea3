//! Deserializes structures from JSON objects only. serde's derived code also accepts an array of
//! the fields in order, which no schema has.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Parses a structure from an object only.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

/// For optional fields: absent but not null.
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// For optional structures: absent but not null.
pub fn present_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    object(deserializer).map(Some)
}

pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(Entries(PhantomData))
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

struct Entries<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
        let mut read = Vec::new();
        while let Some(Object(entry)) = entries.next_element()? {
            read.push(entry);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::value::RawValue;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner<'a> {
        number: u8,
        #[serde(borrow)]
        raw: &'a RawValue,
    }

    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow, deserialize_with = "super::object")]
        one: Inner<'a>,
        #[serde(borrow, default, deserialize_with = "super::present_object")]
        perhaps: Option<Inner<'a>>,
        #[serde(borrow, deserialize_with = "super::objects")]
        many: Vec<Inner<'a>>,
    }

    fn read(one: &str, perhaps: &str, many: &str) -> Result<(u8, Option<u8>, Vec<String>), String> {
        let text = format!(r#"{{"one": {one}{perhaps}, "many": [{many}]}}"#);
        let body: Body<'_> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let raw = body.many.iter().map(|inner| inner.raw.get().to_owned()).collect();
        Ok((body.one.number, body.perhaps.map(|inner| inner.number), raw))
    }

    #[test]
    fn object_is_read_with_raw_parts_but_array_is_not() {
        let inner = r#"{"raw": [1.50], "number": 1}"#;
        assert_eq!(read(inner, "", inner), Ok((1, None, vec!["[1.50]".to_owned()])));
        assert_eq!(read(inner, &format!(r#", "perhaps": {inner}"#), ""), Ok((1, Some(1), Vec::new())));
        let array = "[1, 2]";
        for (one, perhaps, many) in [
            (array, "", inner),
            (inner, r#", "perhaps": [1, 2]"#, inner),
            (inner, r#", "perhaps": null"#, inner),
            (inner, "", array),
        ] {
            let refused = read(one, perhaps, many).unwrap_err();
            assert!(refused.contains("expected an object"), "{refused}");
        }
        let unknown = read(r#"{"raw": 1, "number": 1, "more": 1}"#, "", "").unwrap_err();
        assert!(unknown.contains("unknown field `more`"), "{unknown}");
    }
}
