//! The low-water marks that this server knows: where a claim starts scanning.
//!
//! Only [`LowWaterMarks::advance`] moves a mark, only by a plain read, and only a background pass calls it.

use std::collections::HashMap;

use sqlx::PgConnection;

use tenure_store::low_water_marks::{self, Marks, Writer};
use tenure_store::memory::Memory;
use tenure_store::transitions::claim::PRIORITIES;

/// The marks that this server knows.
#[derive(Clone, Default)]
pub struct LowWaterMarks {
    known: Memory<Known>,
}

#[derive(Default)]
struct Known {
    marks: HashMap<i32, Marks>,
    safe_position: SafePosition,
}

/// How far every place that was handed out is either visible or will never be.
#[derive(Default)]
struct SafePosition {
    reached: i64,
    /// A place, and the transactions that may still hold one up to it.
    next: Option<(i64, Vec<Writer>)>,
}

impl SafePosition {
    fn advance(&mut self, last: i64, writers: &[Writer]) {
        let (place, open) = self.next.take().unwrap_or_else(|| (last, writers.to_vec()));
        let open: Vec<Writer> = open.into_iter().filter(|writer| writers.contains(writer)).collect();
        if open.is_empty() {
            self.reached = self.reached.max(place);
        } else {
            self.next = Some((place, open));
        }
    }
}

const NOT_KNOWN: Marks = Marks { generation: -1, marks: [0; PRIORITIES] };

impl LowWaterMarks {
    /// Where to start scanning a queue. The first question about a queue makes the pass look after it.
    #[must_use]
    pub fn get(&self, queue: i32) -> Marks {
        if let Some(marks) = self.known.read(|known| known.marks.get(&queue).copied()) {
            return marks;
        }
        self.known.note(self.known.epoch(), |known| *known.marks.entry(queue).or_insert(NOT_KNOWN));
        NOT_KNOWN
    }

    /// Moves the marks as far as is safe; answers how many queues it looked after.
    pub async fn advance(&self, conn: &mut PgConnection) -> Result<usize, sqlx::Error> {
        let since = self.known.epoch();
        let old = self.known.read(|known| known.marks.clone());
        if old.is_empty() {
            return Ok(0);
        }
        let (last, writers) = low_water_marks::get_writers(conn).await?;
        let reached = self.known.note(since, |known| {
            known.safe_position.advance(last, &writers);
            known.safe_position.reached
        });
        let Some(reached) = reached else { return Ok(0) };
        let moved = low_water_marks::advance_marks(conn, &old, reached).await?;
        let queues = moved.len();
        self.known.note(since, |known| known.marks.extend(moved));
        Ok(queues)
    }

    /// Drops what is known: scans begin at the start again.
    pub fn drop_all(&self) {
        self.known.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(pid: i32) -> Writer {
        Writer { pid, began: i64::from(pid) }
    }

    #[test]
    fn the_horizon_waits_for_every_writer_that_was_open() {
        let mut safe_position = SafePosition::default();
        safe_position.advance(10, &[writer(1), writer(2)]);
        assert_eq!(safe_position.reached, 0);
        // A writer that began later took a higher place.
        safe_position.advance(20, &[writer(2), writer(3)]);
        assert_eq!(safe_position.reached, 0);
        safe_position.advance(30, &[writer(3)]);
        assert_eq!(safe_position.reached, 10);
        safe_position.advance(40, &[]);
        assert_eq!(safe_position.reached, 40);
    }

    #[test]
    fn without_open_writers_the_horizon_is_the_last_place() {
        let mut safe_position = SafePosition::default();
        safe_position.advance(7, &[]);
        assert_eq!(safe_position.reached, 7);
    }
}
