//! Free space of a disk.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// Returns the part of the disk of a folder that is free for this user, from 0 to 1.
pub(crate) fn free_part(folder: &Path) -> Option<f64> {
    let found = statvfs(folder).ok()?;
    let total = found.blocks() as f64;
    (total > 0.0).then(|| found.blocks_available() as f64 / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_part_is_between_zero_and_one() {
        let part = free_part(&std::env::temp_dir()).unwrap();
        assert!((0.0..=1.0).contains(&part), "{part}");
        assert_eq!(free_part(Path::new("/nowhere/at/all")), None);
    }
}
