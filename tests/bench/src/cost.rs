//! Processor time of server, PostgreSQL and generator, from Linux' `/proc`. On other systems the
//! figures are missing, not wrong.

use std::collections::BTreeMap;
use std::fs;
use std::str::FromStr;

/// Unit of the times in `/proc/<pid>/stat`: 100 on all architectures of Linux that we use.
const TICKS_PER_SECOND: f64 = 100.0;
const POSTGRES: &str = "postgres";

#[derive(Debug)]
pub(crate) struct Processes {
    server: Option<u32>,
    postmaster: Option<u32>,
}

/// Processor seconds of PostgreSQL's running processes, by process id.
pub(crate) type SessionSeconds = BTreeMap<u32, f64>;

/// Processor seconds up to a time, or between two times.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    pub(crate) server: Option<f64>,
    pub(crate) postgres: Option<f64>,
    pub(crate) generator: Option<f64>,
}

impl Cost {
    pub(crate) fn since(&self, start: &Self) -> Self {
        let between = |end: Option<f64>, start: Option<f64>| end.zip(start).map(|(end, start)| end - start);
        Self {
            server: between(self.server, start.server),
            postgres: between(self.postgres, start.postgres),
            generator: between(self.generator, start.generator),
        }
    }
}

impl Processes {
    /// Finds the postmaster: the given process, or the parent of our own session's process, or a
    /// child of the server. The session of a database on another machine has a meaningless process
    /// id, so the name of a found process is checked.
    pub(crate) fn find(server: Option<u32>, postmaster: Option<u32>, backend: Option<u32>) -> Self {
        let by_session = || {
            let backend = Stat::read(backend?).filter(|stat| stat.name == POSTGRES)?;
            Stat::read(backend.parent).filter(|stat| stat.name == POSTGRES).map(|stat| stat.pid)
        };
        let by_server = || children(server?).into_iter().find(|stat| stat.name == POSTGRES).map(|stat| stat.pid);
        Self { server, postmaster: postmaster.or_else(by_session).or_else(by_server) }
    }

    pub(crate) fn cost(&self) -> (Cost, SessionSeconds) {
        let postmaster = self.postmaster.and_then(Stat::read);
        let sessions: SessionSeconds = postmaster.iter().flat_map(|stat| seconds_of_children(stat.pid)).collect();
        // The time of a reaped child moves to its parent, so the sum never falls.
        let running: f64 = sessions.values().sum();
        let cost = Cost {
            server: self.server.and_then(Stat::read).map(|stat| stat.own_seconds()),
            postgres: postmaster.map(|stat| stat.own_seconds() + stat.ended_children + running),
            generator: Stat::read(std::process::id()).map(|stat| stat.own_seconds()),
        };
        (cost, sessions)
    }
}

fn seconds_of_children(parent: u32) -> Vec<(u32, f64)> {
    children(parent).iter().map(|stat| (stat.pid, stat.own_seconds())).collect()
}

fn children(parent: u32) -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Stat::read).filter(|stat| stat.parent == parent).collect()
}

#[derive(Debug, PartialEq)]
struct Stat {
    pid: u32,
    name: String,
    parent: u32,
    user: f64,
    system: f64,
    ended_children: f64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.parse().ok()
    }

    fn own_seconds(&self) -> f64 {
        self.user + self.system
    }
}

impl FromStr for Stat {
    type Err = ();

    /// Parses `pid (name) state ppid …`, with the times in fields 14 to 17. The name may contain
    /// spaces and parentheses.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, rest) = text.split_once(" (").ok_or(())?;
        let (name, rest) = rest.rsplit_once(") ").ok_or(())?;
        let fields: Vec<&str> = rest.split(' ').collect();
        // The list starts at field 3.
        let field = |place: usize| fields.get(place - 3).ok_or(());
        let seconds = |place| Ok(field(place)?.parse::<f64>().map_err(|_| ())? / TICKS_PER_SECOND);
        Ok(Self {
            pid: pid.parse().map_err(|_| ())?,
            name: name.to_owned(),
            parent: field(4)?.parse().map_err(|_| ())?,
            user: seconds(14)?,
            system: seconds(15)?,
            ended_children: seconds(16)? + seconds(17)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_move_the_fields() {
        let stat: Stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 20 30 20 0 1 0 5".parse().unwrap();
        assert_eq!((stat.pid, stat.name.as_str(), stat.parent), (7, "a) b) (c", 1));
        assert_eq!((stat.own_seconds(), stat.ended_children), (2.0, 0.5));
        assert!("7 (x) S 1".parse::<Stat>().is_err());
    }

    #[test]
    fn own_time_counts_and_other_process_is_not_postgres() {
        let processes = Processes::find(None, None, Some(std::process::id()));
        assert_eq!(processes.postmaster, None);
        let (cost, _) = processes.cost();
        assert!(cost.generator.is_some() && cost.server.is_none() && cost.postgres.is_none());
        assert_eq!(cost.since(&cost).generator, Some(0.0));
    }
}
