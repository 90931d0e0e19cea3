//! Safe position: no open transaction can still commit anything at or below it.

use tenure_store::low_water_marks::Writer;

/// Everything assigned up to the safe value is visible or never will be.
#[derive(Debug, Default)]
pub struct SafePosition<T> {
    reached: T,
    /// Next candidate, and the transactions that may still hold a value up to it.
    next: Option<(T, Vec<Writer>)>,
}

impl<T: Copy + PartialOrd> SafePosition<T> {
    pub fn reached(&self) -> T {
        self.reached
    }

    /// Takes in the last assigned value and the transactions open after reading it. Returns the
    /// safe value.
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
    fn safe_position_waits_for_all_open_writers() {
        let mut safe_position = SafePosition::default();
        assert_eq!(safe_position.advance(10, &[writer(1), writer(2)]), 0);
        // A later writer has a higher position.
        assert_eq!(safe_position.advance(20, &[writer(2), writer(3)]), 0);
        assert_eq!(safe_position.advance(30, &[writer(3)]), 10);
        assert_eq!(safe_position.advance(40, &[]), 40);
    }

    #[test]
    fn safe_position_without_writers_is_last_position() {
        assert_eq!(SafePosition::default().advance(7, &[]), 7);
    }
}
