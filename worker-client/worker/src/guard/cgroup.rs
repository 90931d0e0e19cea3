//! A cgroup per run contains all its processes. Needs cgroup v2 and the right to create a group
//! below the worker's own, which root and systemd services with `Delegate=yes` have.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const GONE_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// Returns none if not permitted.
pub(crate) fn make(name: &str) -> Option<PathBuf> {
    // A process may have several workers, and each attempt of a run has its own cgroup.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let group = own()?.join(format!("tenure-{name}-{process}-{number}"));
    std::fs::create_dir(&group).is_ok().then_some(group)
}

/// Moves this process and its future children.
pub(super) fn enter(group: &Path) -> io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
}

/// Kills all processes and removes the cgroup. Returns true if it is gone.
pub(crate) fn end(group: &Path) -> bool {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        match std::fs::remove_dir(group) {
            Ok(()) => return true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
            Err(_) if Instant::now() >= deadline => return false,
            Err(_busy) => kill_all(group),
        }
        std::thread::sleep(LOOK);
    }
}

fn kill_all(group: &Path) {
    // Since Linux 5.14.
    if std::fs::write(group.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| line.parse().ok()) {
        // Fails if it has just ended.
        let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

fn own() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    directory(&mounts, &groups)
}

fn directory(mounts: &str, groups: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4))?
    })?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new(mount).join(path.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cgroup_is_found_at_its_mount() {
        let unified = "22 1 0:20 / /sys rw - sysfs sysfs rw\n30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let hybrid = "30 22 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n31 22 0:27 / /sys/fs/cgroup/unified rw - cgroup2 c rw\n";
        let old = "30 22 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let of = |mounts, groups| directory(mounts, groups).map(|path| path.to_string_lossy().into_owned());
        assert_eq!(of(unified, "0::/a.slice/b.service\n").unwrap(), "/sys/fs/cgroup/a.slice/b.service");
        assert_eq!(of(hybrid, "4:cpu:/x\n0::/\n").unwrap(), "/sys/fs/cgroup/unified/");
        assert_eq!(of(old, "0::/\n"), None);
        assert_eq!(of(unified, "4:cpu:/x\n"), None);
    }
}
