//! The settings of the embedded cluster: durable, and as they were measured to be fast for a queue.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;
/// What we assume where the machine does not report it.
const MEMORY_UNKNOWN: u64 = 2 * GB;
const DISK_UNKNOWN: u64 = 8 * GB;
/// Where a cluster has its WAL: a folder, or a link to one on another disk.
const WAL_DIR: &str = "pg_wal";

/// What the settings depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Machine {
    /// Memory that this process may use.
    pub(super) memory_bytes: u64,
    /// Free space where the WAL is, which may be on a volume of its own.
    pub(super) free_disk_bytes: u64,
    /// Whether this PostgreSQL was built with lz4.
    pub(super) has_lz4: bool,
}

impl Machine {
    /// Looks at the machine, or at the share of it that a container or a service has, and at the disk of this cluster.
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

    /// The text of the settings file.
    pub(super) fn settings(self) -> String {
        let shared_buffers = (self.memory_bytes / 8).clamp(32 * MB, 2 * GB);
        let maintenance = (self.memory_bytes / 64).clamp(16 * MB, 512 * MB);
        // The WAL may grow to this between checkpoints: large means fewer full-page images, but never most of
        // what is left of a small disk.
        let max_wal = (self.free_disk_bytes / 8).clamp(256 * MB, 8 * GB);
        let sized = [
            ("shared_buffers", shared_buffers),
            ("effective_cache_size", (self.memory_bytes / 2).max(64 * MB)),
            ("maintenance_work_mem", maintenance),
            ("max_wal_size", max_wal),
            ("min_wal_size", max_wal / 8),
        ];
        let fixed = [
            // Nothing that was acknowledged may be lost.
            ("fsync", "on"),
            ("full_page_writes", "on"),
            ("synchronous_commit", "on"),
            // Short statements on a fast disk.
            ("wal_compression", if self.has_lz4 { "lz4" } else { "on" }),
            ("random_page_cost", "1.1"),
            ("jit", "off"),
            // Claimed rows die quickly; a minute between two looks makes claims four times slower.
            ("autovacuum_naptime", "5s"),
            ("max_connections", "100"),
            // After the crash of a session PostgreSQL ends, and is started again as after every other end. PostgreSQL 18.6 stands still
            // for ever if its own recovery fails then, as it does on a full disk: the end of its startup process goes unnoticed.
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

/// The files with the limits of memory of a process that is in these control groups. A container sees its own limit at the root; a
/// service of systemd has its limit in one of the groups on the way from its own to the root.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default());
    let all = own.ancestors().take_while(|group| group.starts_with(root));
    let mut files: Vec<PathBuf> = all.map(|group| group.join("memory.max")).collect();
    files.push(root.join("memory/memory.limit_in_bytes"));
    files
}

/// Reads the line `MemTotal:  24689764 kB`.
fn parse_mem_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_machine_gets_the_measured_settings_and_a_small_one_its_share() {
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
    fn the_free_space_is_that_of_the_disk_to_which_the_wal_was_moved() {
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
    fn the_memory_is_that_of_the_container_or_of_the_service() {
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
    fn the_memory_of_the_machine_is_read_in_bytes() {
        assert_eq!(parse_mem_total("MemFree: 1 kB\nMemTotal:       2048 kB\n"), Some(2048 * 1024));
        assert_eq!(parse_mem_total("MemTotal: much"), None);
    }
}
