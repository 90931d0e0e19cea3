//! The safe position: nothing at or below it can still be committed by an open transaction.

use tenure_store::low_water_marks::Writer;

/// A value that only grows, below which everything that was given out is either visible or never will be.
#[derive(Debug, Default)]
pub struct SafePosition<T> {
    reached: T,
    /// A value, and the transactions that may still hold one up to it.
    next: Option<(T, Vec<Writer>)>,
}

impl<T: Copy + PartialOrd> SafePosition<T> {
    /// The safe value.
    pub fn reached(&self) -> T {
        self.reached
    }

    /// Takes in what was read last and the transactions that were open after that, and answers the safe value.
    pub fn advance(&mut self, last: T, open: &[Writer]) -> T {
        let (position, before) = self.next.take().unwrap_or_else(|| (last, open.to_vec()));
        let left: Vec<Writer> = before.into_iter().filter(|writer| open.contains(writer)).collect();
        if !left.is_empty() {
            self.next = Some((position, left));
        } else if position > self.reached {
            self.reached = position;
        }
        self.reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(pid: i32) -> Writer {
        Writer { pid, began: i64::from(pid) }
    }

    #[test]
    fn the_safe_position_waits_for_every_writer_that_was_open() {
        let mut safe_position = SafePosition::default();
        assert_eq!(safe_position.advance(10, &[writer(1), writer(2)]), 0);
        // A writer that began later has a higher position.
        assert_eq!(safe_position.advance(20, &[writer(2), writer(3)]), 0);
        assert_eq!(safe_position.advance(30, &[writer(3)]), 10);
        assert_eq!(safe_position.advance(40, &[]), 40);
    }

    #[test]
    fn without_open_writers_the_safe_position_is_the_last_position() {
        assert_eq!(SafePosition::default().advance(7, &[]), 7);
    }
}
