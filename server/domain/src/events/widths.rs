//! Log positions of the transitions in a row.

use super::{Kind, note};

/// Returns the positions of each kind in a row with `events` positions in total. Unknown kinds of a
/// later release share the rest evenly; nearly always they are all of one kind.
pub fn widths(codes: &[i16], events: i64) -> Vec<i64> {
    let all: Vec<Option<i64>> = codes.iter().map(|&code| width(code)).collect();
    let known: i64 = all.iter().flatten().sum();
    let unknown = i64::try_from(all.iter().filter(|width| width.is_none()).count()).unwrap_or(i64::MAX);
    let share = if unknown == 0 { 0 } else { (events - known).max(0) / unknown };
    all.into_iter().map(|width| width.unwrap_or(share)).collect()
}

fn width(code: i16) -> Option<i64> {
    if code == note::KIND {
        return Some(1);
    }
    Kind::from_code(code).map(|kind| i64::try_from(kind.exchanges().len()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_share_remaining_positions() {
        const LATER: i16 = 1_000;
        for (codes, events, expected) in [
            (vec![1, 2, note::KIND], 4, vec![2, 1, 1]),
            (vec![LATER], 2, vec![2]),
            (vec![1, LATER, 2, LATER], 5, vec![2, 1, 1, 1]),
            (vec![2, LATER, LATER, 6], 7, vec![1, 2, 2, 2]),
            (vec![15, 6, note::KIND], 4, vec![1, 2, 1]),
            // Impossible input must not fail.
            (vec![1, LATER], 1, vec![2, 0]),
            (vec![], 0, vec![]),
        ] {
            assert_eq!(widths(&codes, events), expected, "{codes:?}");
        }
    }
}
