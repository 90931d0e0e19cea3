//! How many positions in the log each transition of a row takes.

use super::{Kind, note};

/// The positions that each of these kinds takes in a row that takes `events` of them. Kinds that a later release has added, which
/// this one does not know, share evenly what the others leave: nearly always they are one and the same.
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
    fn kinds_of_a_later_release_take_what_the_others_leave() {
        const LATER: i16 = 1_000;
        for (codes, events, expected) in [
            (vec![1, 2, note::KIND], 4, vec![2, 1, 1]),
            (vec![LATER], 2, vec![2]),
            (vec![1, LATER, 2, LATER], 5, vec![2, 1, 1, 1]),
            (vec![2, LATER, LATER, 6], 7, vec![1, 2, 2, 2]),
            // What cannot be is no reason to fail.
            (vec![1, LATER], 1, vec![2, 0]),
            (vec![], 0, vec![]),
        ] {
            assert_eq!(widths(&codes, events), expected, "{codes:?}");
        }
    }
}
