//! Settings of the embedded cluster: durable, and measured to be fast for a queue.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;
/// Assumed if the machine does not report it.
const MEMORY_UNKNOWN: u64 = 2 * GB;
const DISK_UNKNOWN: u64 = 8 * GB;
/// A folder, or a link to one on another disk.
const WAL_DIR: &str = "pg_wal";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Machine {
    pub(super) memory_bytes: u64,
    /// Free space of the WAL, which may be on its own volume.
    pub(super) free_disk_bytes: u64,
    pub(super) has_lz4: bool,
}

impl Machine {
    /// Inspects the machine, or the share of a container or service, and the cluster's disk.
    pub(super) fn look(pg_dir: &Path, has_lz4: bool) -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let read = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let limit = limit_files(&groups).into_iter().filter_map(read).min();
        let installed = fs::read_to_string("/proc/meminfo").ok().and_then(|text| parse_mem_total(&text));
        let memory_bytes = installed.unwrap_or(MEMORY_UNKNOWN).min(limit.unwrap_or(u64::MAX));
        let free_disk_bytes = statvfs(&pg_dir.join(WAL_DIR))
            .map(|disk| u128::from(disk.blocks_available()) * u128::from(disk.fragment_size()))
            .map_or(DISK_UNKNOWN, |bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
        Self { memory_bytes, free_disk_bytes, has_lz4 }
    }

    pub(super) fn settings(self) -> String {
        let shared_buffers = (self.memory_bytes / 8).clamp(32 * MB, 2 * GB);
        let maintenance = (self.memory_bytes / 64).clamp(16 * MB, 512 * MB);
        // Maximum WAL between checkpoints: large for fewer full-page images, but never most of a
        // small disk's free space.
        let max_wal = (self.free_disk_bytes / 8).clamp(256 * MB, 8 * GB);
        let sized = [
            ("shared_buffers", shared_buffers),
            ("effective_cache_size", (self.memory_bytes / 2).max(64 * MB)),
            ("maintenance_work_mem", maintenance),
            ("max_wal_size", max_wal),
            ("min_wal_size", max_wal / 8),
        ];
        let fixed = [
            // Acknowledged data must not be lost.
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
            ("wal_compression", if self.has_lz4 { "lz4" } else { "on" }),
            ("random_page_cost", "1.1"),
            ("jit", "off"),
            // Claimed rows die quickly: a naptime of a minute makes claims four times slower.
            ("autovacuum_naptime", "5s"),
            ("max_connections", "100"),
            // After a session's crash PostgreSQL ends and is restarted like after any other end.
            // Its own recovery can hang forever: PostgreSQL 18.6 does not notice if the startup
            // process fails, for example on a full disk.
            ("restart_after_crash", "off"),
            ("password_encryption", "scram-sha-256"),
            ("log_checkpoints", "off"),
            ("log_line_prefix", "'%m [%p] '"),
        ];
        let mut text =
            "# Written by tenure at every start. Put your own settings below the include in postgresql.conf.\n"
                .to_owned();
        for (name, bytes) in sized {
            writeln!(text, "{name} = {}MB", bytes / MB).expect("writing to a string cannot fail");
        }
        for (name, value) in fixed {
            writeln!(text, "{name} = {value}").expect("writing to a string cannot fail");
        }
        text
    }
}

/// Returns the memory limit files of a process in these control groups. A container sees its limit
/// at the root; a systemd service has it in a group between its own and the root.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default());
    let all = own.ancestors().take_while(|group| group.starts_with(root));
    let mut files: Vec<PathBuf> = all.map(|group| group.join("memory.max")).collect();
    files.push(root.join("memory/memory.limit_in_bytes"));
    files
}

/// Parses the line `MemTotal:  24689764 kB`.
fn parse_mem_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_follow_machine_size() {
        let large = Machine { memory_bytes: 24 * GB, free_disk_bytes: 500 * GB, has_lz4: true }.settings();
        for line in
            ["shared_buffers = 2048MB", "max_wal_size = 8192MB", "min_wal_size = 1024MB", "wal_compression = lz4"]
        {
            assert!(large.contains(line), "{line} is not in {large}");
        }
        let small = Machine { memory_bytes: GB, free_disk_bytes: 4 * GB, has_lz4: false }.settings();
        for line in [
            "shared_buffers = 128MB",
            "max_wal_size = 512MB",
            "wal_compression = on",
            "fsync = on",
            "restart_after_crash = off",
        ] {
            assert!(small.contains(line), "{line} is not in {small}");
        }
    }

    #[test]
    fn free_space_is_read_from_disk_of_moved_wal() {
        let folder = tempfile::tempdir().unwrap();
        // A file system without blocks.
        let elsewhere = Path::new("/proc");
        if !elsewhere.join("self").exists() {
            return;
        }
        std::os::unix::fs::symlink(elsewhere, folder.path().join(WAL_DIR)).unwrap();
        assert_eq!(Machine::look(folder.path(), false).free_disk_bytes, 0);
        fs::remove_file(folder.path().join(WAL_DIR)).unwrap();
        fs::create_dir(folder.path().join(WAL_DIR)).unwrap();
        assert_ne!(Machine::look(folder.path(), false).free_disk_bytes, 0);
    }

    #[test]
    fn memory_limit_is_read_from_container_or_service() {
        let files = |groups: &str| -> Vec<String> {
            limit_files(groups).into_iter().map(|file| file.to_string_lossy().into_owned()).collect()
        };
        let of_container = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        for groups in ["0::/\n", "", "4:memory:/docker/1\n1:name=systemd:/docker/1\n"] {
            assert_eq!(files(groups), of_container, "{groups}");
        }
        let of_service =
            ["/sys/fs/cgroup/system.slice/tenure.service/memory.max", "/sys/fs/cgroup/system.slice/memory.max"];
        assert_eq!(files("0::/system.slice/tenure.service\n"), [of_service, of_container].concat());
    }

    #[test]
    fn machine_memory_is_read_in_bytes() {
        assert_eq!(parse_mem_total("MemFree: 1 kB\nMemTotal:       2048 kB\n"), Some(2048 * 1024));
        assert_eq!(parse_mem_total("MemTotal: much"), None);
    }
}
