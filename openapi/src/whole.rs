//! Whole numbers in JSON. For JSON Schema and for languages with one number type, `5.0` is the same
//! whole number as `5`; serde refuses it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// Every whole number up to here has an exact floating-point value.
pub(crate) const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

struct Whole<T>(PhantomData<T>);

impl<T: TryFrom<i128>> Visitor<'_> for Whole<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number that is not too large")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        T::try_from(number.into()).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        T::try_from(number.into()).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        let whole = number.fract() == 0.0 && number.abs() <= EXACT_MAX;
        let found = if whole { T::try_from(number as i128).ok() } else { None };
        found.ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }
}

/// Parses a whole number.
pub fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<T, D::Error> {
    // `deserialize_f64` accepts any number. Otherwise serde_json passes numbers as maps, to
    // preserve all digits.
    deserializer.deserialize_f64(Whole(PhantomData))
}

/// For optional fields: absent but not null.
pub fn present_whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(deserializer: D) -> Result<Option<T>, D::Error> {
    whole(deserializer).map(Some)
}

pub(crate) fn one() -> u16 {
    1
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Body {
        #[serde(deserialize_with = "super::whole")]
        number: u16,
        #[serde(default, deserialize_with = "super::present_whole")]
        perhaps: Option<u16>,
    }

    fn read(number: &str) -> Result<u16, String> {
        let body: Result<Body, _> = serde_json::from_str(&format!("{{\"number\": {number}}}"));
        body.map(|body| body.number).map_err(|error| error.to_string())
    }

    #[test]
    fn whole_number_may_have_point_or_exponent() {
        for (text, number) in
            [("0", 0), ("5", 5), ("5.0", 5), ("5e0", 5), ("-0.0", 0), ("65535", 65_535), ("6.5535e4", 65_535)]
        {
            assert_eq!(read(text), Ok(number), "{text}");
        }
        let absent: Body = serde_json::from_str("{\"number\": 1}").unwrap();
        assert_eq!(absent.perhaps, None);
        let negative = |text: &str| super::whole::<_, i32>(&mut serde_json::Deserializer::from_str(text)).ok();
        assert_eq!(["-390.0", "-9", "-9.5", "-3e9"].map(negative), [Some(-390), Some(-9), None, None]);
        let there: Body = serde_json::from_str("{\"number\": 1, \"perhaps\": 2.0}").unwrap();
        assert_eq!(there.perhaps, Some(2));
    }

    #[test]
    fn fractional_or_too_large_number_is_refused() {
        for text in ["-1", "-1.0", "1.5", "65536", "65536.0", "1e300", "\"5\"", "null", "true", "[]"] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains("a whole number"), "{text}: {refused}");
        }
        assert!(serde_json::from_str::<Body>("{\"number\": 1, \"perhaps\": null}").is_err());
    }
}
