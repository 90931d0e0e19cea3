//! Deserializes values from texts, without a copy of the text.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::value::Error as Reason;
use serde::de::{Deserializer, Error, Visitor};

struct Text<T, F>(F, PhantomData<T>);

impl<T, E: Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Text<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<D: Error>(self, text: &str) -> Result<T, D> {
        (self.0)(text).map_err(D::custom)
    }
}

pub(crate) fn read<'de, D: Deserializer<'de>, T, E: Display>(
    deserializer: D,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text(read, PhantomData))
}

pub(crate) fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<T, D::Error> {
    read(deserializer, str::parse)
}

/// Parses one of these words. serde's derived code also accepts an object with a word as its only
/// key and null as its value, which no schema has.
pub(crate) fn word<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    words: &'static [&'static str],
    find: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    read(deserializer, |text| find(text).ok_or_else(|| Reason::unknown_variant(text, words)))
}
