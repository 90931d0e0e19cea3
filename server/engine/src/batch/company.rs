//! Detects a tick loop with a single caller, which need not wait for others before a tick.

/// Consecutive single-member ticks after which the caller is taken for the only one.
const ALONE_LEAST: u32 = 16;

/// Counts submitted members to estimate the number of callers.
#[derive(Default)]
pub(super) struct Company {
    /// Members submitted before the last tick began.
    taken: u64,
    /// Consecutive ticks with one caller.
    alone: u32,
}

impl Company {
    /// Number of members submitted since the last tick began.
    pub(super) fn waiting(&self, so_far: u64) -> u64 {
        so_far - self.taken
    }

    /// True if no second caller is expected.
    pub(super) fn is_alone(&self, so_far: u64) -> bool {
        self.alone >= ALONE_LEAST && self.waiting(so_far) <= 1
    }

    pub(super) fn begin(&mut self, so_far: u64) {
        self.alone = if self.waiting(so_far) > 1 { 0 } else { self.alone.saturating_add(1) };
        self.taken = so_far;
    }

    /// Ends a tick. A member submitted meanwhile belongs to another caller.
    pub(super) fn end(&mut self, so_far: u64) {
        if self.waiting(so_far) > 0 {
            self.alone = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_alone_after(ticks: u32, members: u64, meanwhile: u64) -> bool {
        let (mut company, mut so_far) = (Company::default(), 0);
        for (members, meanwhile) in std::iter::repeat_n((1, 0), ticks as usize).chain([(members, meanwhile)]) {
            so_far += members;
            company.begin(so_far);
            so_far += meanwhile;
            company.end(so_far);
        }
        company.is_alone(so_far + 1 - meanwhile.min(1))
    }

    #[test]
    fn caller_is_alone_after_enough_single_ticks() {
        assert!(!is_alone_after(ALONE_LEAST - 2, 1, 0));
        assert!(is_alone_after(ALONE_LEAST - 1, 1, 0));
        assert!(is_alone_after(10 * ALONE_LEAST, 1, 0));
        assert!(!is_alone_after(10 * ALONE_LEAST, 2, 0), "two callers shared a tick");
        assert!(!is_alone_after(10 * ALONE_LEAST, 1, 1), "a caller arrived during the tick");
        let mut company = Company::default();
        (1..100).for_each(|so_far| company.begin(so_far));
        assert!(company.is_alone(100) && !company.is_alone(101), "two callers wait");
    }
}
