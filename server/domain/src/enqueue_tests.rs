use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const LIMIT: usize = 3;

fn scan(rows: &[Position], end: i64, open: &[i64]) -> Scan {
    Scan { rows: rows.to_vec(), limit: LIMIT, end, open: open.to_vec() }
}

#[test]
fn complete_scan_moves_to_end_of_snapshot() {
    let mark = Mark::default().advance(&scan(&[(5, 1), (6, 2)], 9, &[7, 8]));
    assert_eq!(mark, Mark { after: (8, i64::MAX), open: BTreeMap::from([(7, 0), (8, 0)]) });
    // 7 has ended with a row, 8 without.
    let next = mark.advance(&scan(&[(7, 3)], 12, &[11]));
    assert_eq!(next, Mark { after: (11, i64::MAX), open: BTreeMap::from([(11, 0)]) });
}

#[test]
fn full_scan_stops_at_its_last_row() {
    let mark = Mark::default().advance(&scan(&[(5, 1), (5, 2), (5, 4)], 9, &[3, 7]));
    assert_eq!(mark, Mark { after: (5, 4), open: BTreeMap::from([(3, 0)]) }, "7 lies beyond");
}

#[test]
fn ended_transaction_stays_open_until_all_its_rows_were_returned() {
    let mark = Mark { after: (8, i64::MAX), open: BTreeMap::from([(7, 0)]) };
    let half = mark.advance(&scan(&[(7, 1), (7, 2), (7, 3)], 9, &[]));
    assert_eq!(half, Mark { after: (8, i64::MAX), open: BTreeMap::from([(7, 3)]) });
    let whole = half.advance(&scan(&[(7, 4)], 9, &[]));
    assert_eq!(whole.open, BTreeMap::new());
}

#[test]
fn rows_of_restored_database_do_not_move_the_mark_beyond_its_snapshot() {
    let restored = [(1_000, 1), (1_000, 2), (1_001, 3)];
    let mark = Mark::default().advance(&scan(&restored, 9, &[]));
    assert_eq!(mark.after, (8, i64::MAX));
}

#[test]
fn attempt_decides_fate_of_row() {
    let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    let after = |millis| Fate::TryAt(now + TimeDelta::milliseconds(millis));
    let why = || "no scope".to_owned();
    for (attempt, tries, expected) in [
        (Attempt::Done, 0, Fate::Delete),
        (Attempt::Refused(why()), 9, Fate::Refuse(why())),
        (Attempt::Locked, 0, after(50)),
        (Attempt::Locked, 3, after(400)),
        (Attempt::Locked, i16::MAX, after(5_000)),
        (Attempt::Waits, 0, after(50)),
        (Attempt::Waits, WAITS_MAX - 1, after(60_000)),
        (Attempt::Full, 0, after(5_000)),
        (Attempt::Full, 1, after(10_000)),
        (Attempt::Full, i16::MAX, after(60_000)),
    ] {
        assert_eq!(fate(attempt.clone(), tries, now), expected, "{attempt:?} {tries}");
    }
    assert!(matches!(fate(Attempt::Waits, WAITS_MAX, now), Fate::Refuse(_)));
}

fn read(body: &str, deadline_after: Option<i32>) -> Result<NewTask, String> {
    let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    let defaults = crate::submit::Defaults::default();
    let origin = Origin { now, client_id: "shop", root_url: "http://t.example", defaults: &defaults };
    let draw = || "fN1SbArXTPSVFNUvaOlinQ".parse::<TaskId>().unwrap();
    complete(parse(body)?, deadline_after, origin, draw)
}

#[test]
fn body_is_completed_like_entry_of_create_tasks() {
    let body = r#"{"taskQueueId": "acme/mail", "taskId": "fN1SbArXTPSVFNUvaOlinQ", "payload": {"to": "a"}}"#;
    let task = read(body, Some(60)).unwrap();
    assert_eq!(task.id.to_string(), "fN1SbArXTPSVFNUvaOlinQ");
    assert_eq!((task.deadline - DateTime::from_timestamp(1_800_000_000, 0).unwrap()).num_seconds(), 60);
    let default = read(body, None).unwrap();
    assert_eq!((default.deadline - DateTime::from_timestamp(1_800_000_000, 0).unwrap()).num_days(), 366);
}

#[test]
fn refusal_of_body_names_its_field() {
    let field = |rest: &str| read(&format!(r#"{{"taskQueueId": "acme/mail", {rest}}}"#), None).unwrap_err();
    assert!(field(r#""tags": {"a": 1}"#).starts_with("`tags.a`: "), "{}", field(r#""tags": {"a": 1}"#));
    assert!(field(r#""color": "red""#).contains("color"));
    assert!(field(r#""dependencies": ["nowhere"]"#).contains("dependencies[0]"));
    let deep = format!(r#""payload": {{"a": {}{}}}"#, "[".repeat(200), "]".repeat(200));
    assert!(field(&deep).contains("100"), "{}", field(&deep));
}

/// Transactions of applications, and a server that scans.
#[derive(Default)]
struct World {
    next_xid: i64,
    next_id: i64,
    /// Rows of open transactions.
    open: BTreeMap<i64, Vec<i64>>,
    committed: BTreeSet<Position>,
    mark: Mark,
    returned: Vec<Position>,
}

impl World {
    fn scan(&mut self) {
        let beyond = self.committed.iter().copied().filter(|&row| row > self.mark.after).take(LIMIT);
        let late = self.mark.open.iter().flat_map(|(&xid, &last)| {
            self.committed.iter().copied().filter(move |row| row.0 == xid && row.1 > last).take(LIMIT)
        });
        let mut rows: Vec<Position> = beyond.chain(late).collect();
        rows.sort_unstable();
        self.returned.extend(&rows);
        let scan = Scan { rows, limit: LIMIT, end: self.next_xid, open: self.open.keys().copied().collect() };
        self.mark = self.mark.advance(&scan);
    }

    fn step(&mut self, kind: u8, choice: usize) {
        let chosen = self.open.keys().copied().nth(choice % self.open.len().max(1));
        match (kind, chosen) {
            (0, _) => {
                self.open.insert(self.next_xid, Vec::new());
                self.next_xid += 1;
            }
            (1 | 2, Some(xid)) => {
                self.next_id += 1;
                self.open.entry(xid).or_default().push(self.next_id);
            }
            (3, Some(xid)) => {
                let ids = self.open.remove(&xid).unwrap_or_default();
                self.committed.extend(ids.into_iter().map(|id| (xid, id)));
            }
            (4, Some(xid)) => drop(self.open.remove(&xid)),
            (5, _) => self.scan(),
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn every_committed_row_is_returned_once(steps in vec((0_u8..=5, 0_usize..8), 0..300)) {
        let mut world = World { next_xid: 1, ..World::default() };
        for (kind, choice) in steps {
            world.step(kind, choice);
        }
        while !world.open.is_empty() {
            world.step(3, 0);
        }
        for _ in 0..=world.committed.len() {
            world.scan();
        }
        let mut returned = world.returned;
        returned.sort_unstable();
        prop_assert_eq!(returned, world.committed.into_iter().collect::<Vec<_>>());
    }
}
