//! Durations in settings: a whole number and a unit.

use std::time::Duration;

/// Largest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses `250ms`, `90s`, `20m`, `2h` or `5d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, length)| *length);
    match (number.parse::<u64>(), milliseconds) {
        (Ok(number), Some(length)) => {
            number.checked_mul(length).map(Duration::from_millis).ok_or_else(|| "that is too long".to_owned())
        }
        _ => Err("write a whole number and a unit: 250ms, 90s, 20m, 2h or 5d".to_owned()),
    }
}

/// The inverse of [`parse_duration`].
pub(super) fn display(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let (unit, length) = UNITS
        .into_iter()
        .find(|(_, length)| milliseconds > 0 && milliseconds.is_multiple_of(u128::from(*length)))
        .unwrap_or(("s", 1_000));
    format!("{}{unit}", milliseconds / u128::from(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_number_and_unit() {
        for (text, milliseconds) in
            [("250ms", 250), ("0s", 0), ("90s", 90_000), ("20m", 1_200_000), ("2h", 7_200_000), ("5d", 432_000_000)]
        {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(milliseconds), "{text}");
            assert_eq!(parse_duration(&display(duration)).unwrap(), duration, "{text}");
        }
        for text in ["", "5", "s", "1.5h", "-5s", "5 s", "5S", "5w", "99999999999999999999s", "18446744073709551615d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
