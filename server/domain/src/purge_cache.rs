//! Requests to purge workers' caches.

use std::time::Duration;

use super::scopes::valid_pattern;

/// How long workers are told about a request.
pub const PURGE_KEPT: Duration = Duration::from_hours(24);
pub const PURGES_MAX: usize = 1_000;
pub const CACHE_NAME_MAX: usize = 1_000;

/// A cache name is part of the scope that permits the purge, so it has the characters of scopes.
pub fn check_cache_name(name: &str) -> Result<(), String> {
    let length = name.chars().count();
    if !(1..=CACHE_NAME_MAX).contains(&length) {
        return Err(format!("`cacheName` must have 1 to {CACHE_NAME_MAX} characters; it has {length}"));
    }
    if !valid_pattern(name) {
        return Err("`cacheName` must be printable ASCII".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_a_name_of_printable_text() {
        for good in ["a", " ", "level-3-checkouts**", &"x".repeat(CACHE_NAME_MAX)] {
            assert_eq!(check_cache_name(good), Ok(()), "{good}");
        }
        for bad in ["", "a\n", "\u{e9}", "\0", &"x".repeat(CACHE_NAME_MAX + 1)] {
            assert!(check_cache_name(bad).is_err_and(|why| why.contains("cacheName")), "{bad}");
        }
    }
}
