//! Patterns for routing keys, as in AMQP's topic exchanges: `*` for one word, `#` for any number.

use std::fmt;
use std::str::FromStr;

/// A routing key cannot have more bytes.
pub const PATTERN_CHARS_MAX: usize = 255;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    words: Vec<Word>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Word {
    /// A `*` or `#` inside a longer word is a plain character, as in AMQP.
    Literal(String),
    One,
    /// Any number of words, including none.
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a pattern of at most {PATTERN_CHARS_MAX} characters")
    }
}

impl FromStr for Pattern {
    type Err = TooLong;

    fn from_str(text: &str) -> Result<Self, TooLong> {
        if text.chars().count() > PATTERN_CHARS_MAX {
            return Err(TooLong);
        }
        let mut parsed: Vec<Word> = Vec::new();
        for word in words(text) {
            let word = match word {
                "*" => Word::One,
                "#" => Word::Any,
                literal => Word::Literal(literal.to_owned()),
            };
            // Two in a row are equivalent to one.
            if word != Word::Any || parsed.last() != Some(&Word::Any) {
                parsed.push(word);
            }
        }
        Ok(Self { words: parsed })
    }
}

impl Pattern {
    /// Backtracking only extends the last `#`: the words before it matched as early as possible, so
    /// extending an earlier `#` cannot help. The steps are at most the product of both lengths.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        let key: Vec<&str> = words(key).collect();
        let (mut at_word, mut at_key) = (0, 0);
        let mut widen: Option<(usize, usize)> = None;
        while at_key < key.len() {
            match self.words.get(at_word) {
                Some(Word::Any) => {
                    widen = Some((at_word + 1, at_key));
                    at_word += 1;
                    continue;
                }
                Some(Word::One) => {
                    (at_word, at_key) = (at_word + 1, at_key + 1);
                    continue;
                }
                Some(Word::Literal(literal)) if literal == key[at_key] => {
                    (at_word, at_key) = (at_word + 1, at_key + 1);
                    continue;
                }
                Some(Word::Literal(_)) | None => {}
            }
            let Some((after, from)) = widen else { return false };
            widen = Some((after, from + 1));
            (at_word, at_key) = (after, from + 1);
        }
        self.words[at_word..].iter().all(|word| *word == Word::Any)
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('.').filter(move |_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn covers(pattern: &str, key: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(key)
    }

    #[test]
    fn patterns_match_as_in_amqp() {
        for (pattern, key, expected) in [
            ("a.b.c", "a.b.c", true),
            ("a.b.c", "a.b", false),
            ("a.b", "a.b.c", false),
            ("a.b", "a.B", false),
            ("*", "a", true),
            ("*", "", false),
            ("*", "a.b", false),
            ("*.b", "a.b", true),
            ("a.*", "a", false),
            ("*.*", "a.b", true),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.c", false),
            ("#", "", true),
            ("#", "a", true),
            ("#", "a.b.c", true),
            ("a.#", "a", true),
            ("a.#", "a.b.c", true),
            ("a.#", "b.a", false),
            ("#.c", "c", true),
            ("#.c", "a.b.c", true),
            ("#.c", "a.c.b", false),
            ("a.#.c", "a.c", true),
            ("a.#.c", "a.b.b.c", true),
            ("a.#.c", "a.b.c.d", false),
            ("a.#.b.#.c", "a.x.b.y.b.c", true),
            ("a.#.b.#.c", "a.x.y.c", false),
            ("#.*", "", false),
            ("#.*", "a", true),
            ("*.#", "a.b", true),
            ("#.#", "", true),
            ("#.a.#", "b.a", true),
            ("#.a.#", "b", false),
            ("#.*.#.*.#", "a", false),
            ("#.*.#.*.#", "a.b", true),
            ("", "", true),
            ("", "a", false),
            // Each dot adds a word, even an empty one.
            ("a.*", "a.", true),
            ("a.", "a", false),
            ("a..b", "a..b", true),
            ("a.*.b", "a..b", true),
            // Plain characters inside a word.
            ("a*", "ab", false),
            ("a*", "a*", true),
            ("##", "a", false),
            ("primary.*.*.*.*.acme.#", "primary.id.0.g.w.acme.linux.-.group._", true),
            ("primary.*.*.*.*.acme.#", "primary.id.0.g.w.other.linux.-.group._", false),
            ("index.#.latest", "index.gecko.v2.latest", true),
        ] {
            assert_eq!(covers(pattern, key), expected, "{pattern:?} and {key:?}");
        }
    }

    #[test]
    fn pattern_longer_than_routing_key_is_refused() {
        assert!("a".repeat(PATTERN_CHARS_MAX).parse::<Pattern>().is_ok());
        assert_eq!("a".repeat(PATTERN_CHARS_MAX + 1).parse::<Pattern>(), Err(TooLong));
        assert!(TooLong.to_string().contains("255"));
    }

    #[test]
    fn matching_time_is_bounded_by_product_of_lengths() {
        let attacks = ["#.", "#.a.", "#.*.", "*.#.", "#.a.#.b.", "#.a.a.", "a.#.a.*."].map(|unit| {
            let mut pattern = unit.repeat(PATTERN_CHARS_MAX / unit.len() - 1);
            pattern.push('z');
            pattern
        });
        let started = Instant::now();
        for attack in &attacks {
            let pattern: Pattern = attack.parse().unwrap();
            for key in ["a.".repeat(500), "a.a.b.".repeat(300), "b.".repeat(500)] {
                assert!(!pattern.matches(&key), "{attack}");
            }
        }
        // Milliseconds unless it is exponential.
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }

    /// The definition, word by word, with every choice tried.
    fn naive(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern, key) {
            ([], []) => true,
            ([], _) => false,
            (["#", rest @ ..], _) => (0..=key.len()).any(|taken| naive(rest, &key[taken..])),
            ([_, ..], []) => false,
            ([word, pattern @ ..], [found, key @ ..]) => (*word == "*" || word == found) && naive(pattern, key),
        }
    }

    proptest! {
        #[test]
        fn matcher_agrees_with_definition(
            pattern in proptest::collection::vec(proptest::sample::select(vec!["#", "*", "a", "b"]), 0..8),
            key in proptest::collection::vec(proptest::sample::select(vec!["a", "b", "c"]), 0..9),
        ) {
            prop_assert_eq!(covers(&pattern.join("."), &key.join(".")), naive(&pattern, &key));
        }
    }
}
