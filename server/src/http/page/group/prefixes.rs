//! Nodes of the graph of a large group: tasks whose names begin with the same words.

use std::collections::HashSet;

/// Words compared at most.
const WORDS_MAX: usize = 4;

/// Returns the prefix of each name: the most words with which there are up to `most` prefixes. With
/// more different first words, all tasks are one node.
pub(super) fn prefixes<'a>(names: &[&'a str], most: usize) -> Vec<&'a str> {
    let of = |words: usize| names.iter().map(|&name| prefix(name, words)).collect::<Vec<_>>();
    let fits = |prefixes: &[&str]| prefixes.iter().collect::<HashSet<_>>().len() <= most;
    (0..=WORDS_MAX).rev().map(of).find(|prefixes| fits(prefixes)).unwrap_or_default()
}

/// Returns the first words of a name, without digits at the end.
fn prefix(name: &str, words: usize) -> &str {
    let ends = name.match_indices(|character: char| !character.is_alphanumeric()).map(|(at, _)| at);
    let end = ends.chain([name.len()]).take(words).last().unwrap_or(0);
    name[..end].trim_end_matches(|character: char| character.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_ends_between_words() {
        for (name, words, expected) in [
            ("test-linux-12", 2, "test-linux"),
            ("test-linux-12", 3, "test-linux-"),
            ("test-linux-12", 9, "test-linux-"),
            ("build12", 1, "build"),
            ("build/é x", 2, "build/é"),
            ("", 1, ""),
            ("name", 0, ""),
        ] {
            assert_eq!(prefix(name, words), expected);
        }
    }

    #[test]
    fn longest_prefixes_that_fit_are_chosen() {
        let names = ["test-linux-1", "test-linux-2", "test-mac-1", "build"];
        assert_eq!(prefixes(&names, 3), ["test-linux-", "test-linux-", "test-mac-", "build"]);
        assert_eq!(prefixes(&names, 2), ["test", "test", "test", "build"]);
        assert_eq!(prefixes(&names, 1), ["", "", "", ""]);
        assert!(prefixes(&[], 1).is_empty());
    }
}
