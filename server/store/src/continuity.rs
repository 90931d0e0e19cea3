//! Detects that the database was replaced, or has lost commits that this server has read.
//!
//! A failover, restore or crash may undo sequence positions, keys and generations. Any detection is
//! reported here, and all caches of the database are cleared. Clearing too often costs a few reads;
//! clearing too late strands tasks.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};

/// Hexadecimal digits of the timeline, at the start of a WAL file name.
const TIMELINE_DIGITS: usize = 8;

/// One life of a PostgreSQL, which changes with each promotion and start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incarnation {
    /// Timeline of the WAL; 0 if a service does not reveal it.
    pub timeline: u32,
    /// Start of the postmaster, in microseconds since 1970.
    pub started: i64,
}

impl Incarnation {
    /// Derives it from the current WAL file and the start of the postmaster.
    pub(crate) fn new(wal_file: Option<&str>, started: DateTime<Utc>) -> Result<Self, sqlx::Error> {
        let timeline = match wal_file {
            None => 0,
            Some(file) => file
                .get(..TIMELINE_DIGITS)
                .and_then(|digits| u32::from_str_radix(digits, 16).ok())
                .ok_or_else(|| sqlx::Error::Decode(format!("{file} has no timeline").into()))?,
        };
        Ok(Self { timeline, started: started.timestamp_micros() })
    }
}

/// Reason to clear caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// A connection reached a promoted, restored or restarted PostgreSQL.
    OtherIncarnation,
    /// The session that monitors the database was lost and reconnected.
    SessionLost,
    /// This server has seen a greater position than the database has.
    PositionWentBack,
}

impl Break {
    fn reason(self) -> &'static str {
        match self {
            Self::OtherIncarnation => "the connected PostgreSQL was promoted, restored or started anew",
            Self::SessionLost => "the session that watches the database was lost",
            Self::PositionWentBack => "the database is behind a position read earlier",
        }
    }
}

type Listener = Arc<dyn Fn() + Send + Sync>;

/// Known state of the database. Clones share it.
#[derive(Clone, Default)]
pub struct Continuity {
    state: Arc<Mutex<State>>,
    /// Held until all caches are cleared: no other connection to the new incarnation is used
    /// before.
    dropping: Arc<Mutex<()>>,
}

#[derive(Default)]
struct State {
    incarnation: Option<Incarnation>,
    breaks: u64,
    listeners: Vec<Listener>,
}

impl Continuity {
    /// Registers a listener for breaks, called before the detecting caller uses the database again.
    /// It must own no pool or session, because these own this.
    pub fn on_break(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.state().listeners.push(Arc::new(listener));
    }

    /// Reports a new, unused connection to this incarnation. If the incarnation changed, retires
    /// older connections and then clears all caches. Returns true if it changed. Listeners must not
    /// call it.
    pub fn connected(&self, incarnation: Incarnation, retire: impl FnOnce()) -> bool {
        let _dropping = self.dropping.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.state().incarnation.replace(incarnation);
        let differs = before.is_some_and(|before| before != incarnation);
        if differs {
            retire();
            self.broken(Break::OtherIncarnation);
        }
        differs
    }

    /// Clears all caches, because cached values may be stale.
    pub fn broken(&self, why: Break) {
        let listeners = {
            let mut state = self.state();
            state.breaks += 1;
            state.listeners.clone()
        };
        tracing::warn!(
            reason = why.reason(),
            "the database may have lost what this server has read from it; everything that was cached is read again"
        );
        metrics::counter!("tenure_database_breaks_total").increment(1);
        for listener in listeners {
            listener();
        }
    }

    pub fn breaks(&self) -> u64 {
        self.state().breaks
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Continuity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Continuity").field("incarnation", &state.incarnation).field("breaks", &state.breaks).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_changed_incarnation_is_break() {
        let (continuity, dropped) = (Continuity::default(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&dropped);
        continuity.on_break(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let first = Incarnation { timeline: 1, started: 10 };
        let connected = |incarnation| continuity.connected(incarnation, || ());
        assert!(!connected(first));
        assert!(!connected(first));
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        assert!(connected(Incarnation { timeline: 2, ..first }));
        assert!(connected(Incarnation { timeline: 2, started: 20 }));
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
        continuity.broken(Break::PositionWentBack);
        assert_eq!((dropped.load(Ordering::SeqCst), continuity.breaks()), (3, 3));
    }

    #[test]
    fn new_incarnation_is_used_after_caches_are_cleared() {
        let continuity = Continuity::default();
        let (drop_it, may_drop) = mpsc::channel::<()>();
        let (dropping, is_dropping) = mpsc::channel();
        let may_drop = Mutex::new(may_drop);
        continuity.on_break(move || {
            dropping.send(()).unwrap();
            may_drop.lock().unwrap().recv().unwrap();
        });
        let [first, second] = [10, 20].map(|started| Incarnation { timeline: 1, started });
        assert!(!continuity.connected(first, || ()));
        let finds = thread::spawn({
            let continuity = continuity.clone();
            move || continuity.connected(second, || ())
        });
        is_dropping.recv().unwrap();
        let (used, is_used) = mpsc::channel();
        let other = thread::spawn({
            let continuity = continuity.clone();
            move || used.send(continuity.connected(second, || ())).unwrap()
        });
        assert_eq!(is_used.recv_timeout(Duration::from_millis(100)), Err(mpsc::RecvTimeoutError::Timeout));
        drop_it.send(()).unwrap();
        assert!(finds.join().unwrap());
        assert!(!is_used.recv().unwrap());
        other.join().unwrap();
    }
}
