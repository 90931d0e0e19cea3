//! Whether a loop of ticks has more than one caller: only then is it worth waiting for others before a tick.

/// After so many ticks in a row with one member, during which no other came, the next one is taken for the only one.
const ALONE_LEAST: u32 = 16;

/// What is known of the callers of a loop, by how many members have come so far.
#[derive(Default)]
pub(super) struct Company {
    /// How many had come when the last tick began.
    taken: u64,
    /// How many ticks in a row had one caller.
    alone: u32,
}

impl Company {
    /// How many have come since the last tick began.
    pub(super) fn waiting(&self, so_far: u64) -> u64 {
        so_far - self.taken
    }

    /// Whether no other caller is to be expected.
    pub(super) fn is_alone(&self, so_far: u64) -> bool {
        self.alone >= ALONE_LEAST && self.waiting(so_far) <= 1
    }

    /// A tick begins with all that have come.
    pub(super) fn begin(&mut self, so_far: u64) {
        self.alone = if self.waiting(so_far) > 1 { 0 } else { self.alone.saturating_add(1) };
        self.taken = so_far;
    }

    /// The tick has ended. A member that came while it ran is of another caller.
    pub(super) fn end(&mut self, so_far: u64) {
        if self.waiting(so_far) > 0 {
            self.alone = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many ticks of a caller that is alone, and this one.
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
    fn a_caller_is_alone_after_some_ticks_without_another_one() {
        assert!(!is_alone_after(ALONE_LEAST - 2, 1, 0));
        assert!(is_alone_after(ALONE_LEAST - 1, 1, 0));
        assert!(is_alone_after(10 * ALONE_LEAST, 1, 0));
        assert!(!is_alone_after(10 * ALONE_LEAST, 2, 0), "two have shared a tick");
        assert!(!is_alone_after(10 * ALONE_LEAST, 1, 1), "another one came while it ran");
        let mut company = Company::default();
        (1..100).for_each(|so_far| company.begin(so_far));
        assert!(company.is_alone(100) && !company.is_alone(101), "two are waiting");
    }
}
