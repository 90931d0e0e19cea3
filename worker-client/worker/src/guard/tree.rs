//! Finds the processes below a process, and identifies processes. Uses `/proc` on Linux; elsewhere
//! the command's process group takes its place.

use std::io::Write as _;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Distinguishes a process from all others with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub pid: i32,
    /// In clock ticks since boot.
    pub start: u64,
    pub boot: String,
}

/// Fields of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessStat {
    pid: i32,
    parent: i32,
    start: u64,
    /// Not reaped yet.
    ended: bool,
}

impl Identity {
    /// Returns none if the process does not exist or is not visible.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let stat = read_stat(pid).filter(|stat| !stat.ended)?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Self { pid, start: stat.start, boot: boot.trim().to_owned() })
    }

    pub(crate) fn runs(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    pub(crate) fn kill_tree(&self) {
        // Last: the others are found through it.
        let root = Pid::from_raw(self.pid);
        for pid in below(root) {
            send(pid, Signal::SIGKILL);
        }
        if self.runs() {
            send(root, Signal::SIGKILL);
        }
    }
}

pub(super) fn runs(pid: Pid) -> bool {
    if cfg!(target_os = "linux") {
        read_stat(pid.as_raw()).is_some_and(|stat| !stat.ended)
    } else {
        kill(pid, None).is_ok()
    }
}

/// Signals every process below `top`, or the process group of `command` if they are unknown.
pub(super) fn signal_below(top: Pid, command: Pid, signal: Signal) {
    if cfg!(target_os = "linux") {
        below(top).into_iter().for_each(|pid| send(pid, signal));
    } else {
        // Fails if none is left.
        let _gone = nix::sys::signal::killpg(command, signal);
    }
}

/// Kills processes below `top`, except the trees of `guards`, and reaps ended ones. Returns true if
/// any is left.
pub(crate) fn end_orphans(top: Pid, guards: &[i32]) -> bool {
    let all = all();
    let children = all.iter().filter(|stat| stat.parent == top.as_raw() && !guards.contains(&stat.pid));
    let mut left = false;
    for child in children {
        let pid = Pid::from_raw(child.pid);
        if child.ended {
            let _collected = nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::WNOHANG));
        } else {
            left = true;
            below_in(&all, child.pid).into_iter().chain([pid]).for_each(|pid| send(pid, Signal::SIGKILL));
        }
    }
    left
}

fn send(pid: Pid, signal: Signal) {
    match kill(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        // The command has started a process of another user.
        Err(error) => complain(&format!("process {pid} could not be signalled: {error}")),
    }
}

/// In a guard, standard error is the task's log.
pub(super) fn complain(problem: &str) {
    // Without a worker there is no log, and the cleanup matters more.
    let _unheard = writeln!(std::io::stderr(), "tenure-worker: {problem}");
}

fn below(top: Pid) -> Vec<Pid> {
    below_in(&all(), top.as_raw())
}

fn below_in(all: &[ProcessStat], top: i32) -> Vec<Pid> {
    let mut found = Vec::new();
    let mut to_do = vec![top];
    while let Some(parent) = to_do.pop() {
        for child in all.iter().filter(|stat| stat.parent == parent) {
            to_do.push(child.pid);
            if !child.ended {
                found.push(Pid::from_raw(child.pid));
            }
        }
    }
    found
}

fn all() -> Vec<ProcessStat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(read_stat).collect()
}

fn read_stat(pid: i32) -> Option<ProcessStat> {
    parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(pid: i32, stat: &str) -> Option<ProcessStat> {
    // The name may contain anything, so fields are counted from its end.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    // Field 22; three and four were read above.
    let start = fields.nth(17)?.parse().ok()?;
    Some(ProcessStat { pid, parent, start, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_any_name_is_read() {
        let rest = "S 7 9 9 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 4711 1 1 1";
        for name in ["sh", "a b", "x) S 1 (", ""] {
            let stat = parse(5, &format!("5 ({name}) {rest}"));
            assert_eq!(stat, Some(ProcessStat { pid: 5, parent: 7, start: 4711, ended: false }), "{name}");
        }
        assert_eq!(parse(5, &format!("5 (x) {}", rest.replace('S', "Z"))).map(|stat| stat.ended), Some(true));
        assert_eq!(parse(5, ""), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let stat = |pid, parent, ended| ProcessStat { pid, parent, start: 0, ended };
        let all = [stat(2, 1, false), stat(3, 2, true), stat(4, 3, false), stat(5, 9, false), stat(6, 4, false)];
        let mut found: Vec<i32> = below_in(&all, 2).into_iter().map(Pid::as_raw).collect();
        found.sort_unstable();
        assert_eq!(found, [4, 6]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn reused_number_is_another_process() {
        let me = i32::try_from(std::process::id()).unwrap();
        let identity = Identity::of(me).unwrap();
        assert!(identity.runs());
        assert!(!Identity { start: identity.start + 1, ..identity.clone() }.runs());
        assert!(!Identity { boot: "another".into(), ..identity }.runs());
    }
}
