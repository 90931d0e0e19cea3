//! A small seeded generator, so that a failed run can be repeated from its seed.

use tenure_api::ids::SlugId;

/// Pseudo-random numbers (SplitMix64): fast, seedable and good enough for the choices of tests. Not
/// for secrets.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self { state: seed }
    }

    #[must_use]
    pub fn fresh_seed() -> u64 {
        getrandom::u64().expect("the operating system gives random bytes")
    }

    /// Returns a separate generator for one of many actors; the same seed and number give the same
    /// sequence.
    #[must_use]
    pub fn fork(seed: u64, actor: u64) -> Self {
        let mut parent = Self::from_seed(seed ^ actor.wrapping_mul(0xD1B5_4A32_D192_ED03));
        Self::from_seed(parent.draw())
    }

    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `limit` - 1; 0 if the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.draw() % limit }
    }

    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        let index = usize::try_from(self.below(choices.len() as u64)).ok()?;
        choices.get(index)
    }

    pub fn task_id(&mut self) -> SlugId {
        let bits = u128::from(self.draw()) << 64 | u128::from(self.draw());
        SlugId::from_random(bits.to_be_bytes())
    }

    /// Appends this many hexadecimal digits: text that compresses badly.
    pub fn push_hex(&mut self, text: &mut String, digits: usize) {
        let mut left = digits;
        while left > 0 {
            let mut bits = self.draw();
            for _ in 0..left.min(16) {
                text.push(char::from(b"0123456789abcdef"[(bits & 0xf) as usize]));
                bits >>= 4;
            }
            left = left.saturating_sub(16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_sequence_again() {
        let sequence = |seed| {
            let mut random = Random::from_seed(seed);
            (0..5).map(|_| random.draw()).collect::<Vec<_>>()
        };
        assert_eq!(sequence(7), sequence(7));
        assert_ne!(sequence(7), sequence(8));
        assert_ne!(Random::fork(7, 0).draw(), Random::fork(7, 1).draw());
    }

    #[test]
    fn choices_stay_within_their_limits() {
        let mut random = Random::from_seed(1);
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert_eq!(random.below(0), 0);
        assert_eq!(random.pick::<u8>(&[]), None);
        assert!(random.pick(&[1, 2, 3]).is_some());
        let mut text = String::new();
        random.push_hex(&mut text, 37);
        assert_eq!(text.len(), 37);
        assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
