//! A cached fact: its value, and its generation when read.
//!
//! Reads are ordered by their start, not by generation, because a failover may take generations
//! back. An earlier read never replaces the result of a later one.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::PgConnection;

/// A small value in the database whose changes take effect on every server within half a second.
///
/// [`remembered`](crate::remembered) describes how to add one.
pub trait Fact: Send + Sync + 'static {
    /// Row of `fact_generations`.
    const NAME: &'static str;
    /// The cached value. The default applies until the first read.
    type Value: Default + Send + Sync + 'static;

    fn read(conn: &mut PgConnection) -> impl Future<Output = Result<Self::Value, sqlx::Error>> + Send;
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Poll {
    /// Higher for later polls.
    pub(super) turn: u64,
    pub(super) began: Instant,
}

/// The cache of a fact. Clones share it.
pub struct Remembered<F: Fact> {
    shared: Arc<RememberedInner<F::Value>>,
}

impl<F: Fact> Clone for Remembered<F> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<F: Fact> Default for Remembered<F> {
    fn default() -> Self {
        Self { shared: Arc::default() }
    }
}

type Listener<T> = Box<dyn Fn(&T, &T) + Send + Sync>;

struct RememberedInner<T> {
    state: RwLock<State<T>>,
    listeners: RwLock<Vec<Listener<T>>>,
}

impl<T: Default> Default for RememberedInner<T> {
    fn default() -> Self {
        Self { state: RwLock::default(), listeners: RwLock::default() }
    }
}

#[derive(Default)]
struct State<T> {
    value: Arc<T>,
    loaded: bool,
    /// Generation of the value; none to force a new read.
    generation: Option<i64>,
    /// Turn of the last applied poll; earlier ones are ignored.
    applied: u64,
    /// Looks up to this turn may have missed a change. Their values are newer and stored, but not
    /// confirmed, and are read again.
    expired: u64,
    /// Start of the confirming poll; none if the value may have changed since.
    confirmed: Option<Instant>,
    failing: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Late,
    Same,
    /// The fact must be read again.
    Changed,
}

impl<T> State<T> {
    fn see(&mut self, poll: Poll, generation: i64) -> Verdict {
        if poll.turn <= self.applied {
            return Verdict::Late;
        }
        if self.generation != Some(generation) {
            return Verdict::Changed;
        }
        (self.applied, self.failing) = (poll.turn, false);
        if poll.turn > self.expired {
            self.confirmed = Some(poll.began);
        }
        Verdict::Same
    }

    fn replace(&mut self, poll: Poll, generation: i64, value: Arc<T>) -> Option<Arc<T>> {
        if poll.turn <= self.applied {
            return None;
        }
        let is_current = poll.turn > self.expired;
        (self.applied, self.loaded, self.failing) = (poll.turn, true, false);
        (self.generation, self.confirmed) = (is_current.then_some(generation), is_current.then_some(poll.began));
        Some(std::mem::replace(&mut self.value, value))
    }

    /// Only a poll after this turn confirms the value.
    fn expire(&mut self, turn: u64) {
        self.expired = self.expired.max(turn);
        (self.generation, self.confirmed) = (None, None);
    }
}

impl<F: Fact> Remembered<F> {
    pub fn get(&self) -> Arc<F::Value> {
        Arc::clone(&self.state().value)
    }

    pub fn find(&self) -> Option<Arc<F::Value>> {
        Some(self.state()).filter(|state| state.loaded).map(|state| Arc::clone(&state.value))
    }

    /// Returns the value, if a poll started within `age_max` confirmed it.
    pub fn find_confirmed(&self, age_max: Duration) -> Option<Arc<F::Value>> {
        let state = self.state();
        state.confirmed.filter(|began| began.elapsed() < age_max).map(|_| Arc::clone(&state.value))
    }

    /// Changes the cached value until the next poll.
    pub(super) fn amend(&self, turn: u64, change: impl FnOnce(&F::Value) -> F::Value) {
        let mut state = self.state_mut();
        state.value = Arc::new(change(&state.value));
        state.expire(turn);
    }

    /// Calls `listener` with the old and new value after each read.
    pub fn on_change(&self, listener: impl Fn(&F::Value, &F::Value) + Send + Sync + 'static) {
        self.shared.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    fn state(&self) -> RwLockReadGuard<'_, State<F::Value>> {
        self.shared.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State<F::Value>> {
        self.shared.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn refresh(&self, conn: &mut PgConnection, poll: Poll, generation: i64) -> Result<bool, sqlx::Error> {
        if self.state_mut().see(poll, generation) != Verdict::Changed {
            return Ok(false);
        }
        let value = match F::read(conn).await {
            Ok(value) => Arc::new(value),
            Err(error) => {
                // Logged once per outage.
                if !std::mem::replace(&mut self.state_mut().failing, true) {
                    tracing::error!(
                        fact = F::NAME, error = %error,
                        "a cached fact could not be refreshed; its last value stays in use"
                    );
                }
                return Err(error);
            }
        };
        let replaced = self.state_mut().replace(poll, generation, Arc::clone(&value));
        let Some(before) = replaced else { return Ok(false) };
        for listener in &*self.shared.listeners.read().unwrap_or_else(PoisonError::into_inner) {
            listener(&before, &value);
        }
        Ok(true)
    }
}

pub(super) trait AnyFact: Sync {
    fn name(&self) -> &'static str;
    fn refresh<'a>(
        &'a self,
        conn: &'a mut PgConnection,
        poll: Poll,
        generation: i64,
    ) -> BoxFuture<'a, Result<bool, sqlx::Error>>;
    /// Forces the next poll to read the fact; the value stays in use until then.
    fn expire(&self, turn: u64);
}

impl<F: Fact> AnyFact for Remembered<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn refresh<'a>(
        &'a self,
        conn: &'a mut PgConnection,
        poll: Poll,
        generation: i64,
    ) -> BoxFuture<'a, Result<bool, sqlx::Error>> {
        Box::pin(self.refresh(conn, poll, generation))
    }

    fn expire(&self, turn: u64) {
        self.state_mut().expire(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(turn: u64) -> Poll {
        Poll { turn, began: Instant::now() }
    }

    fn read_at(turn: u64, generation: i64, value: &'static str) -> State<&'static str> {
        let mut state = State::default();
        assert_eq!(state.see(poll(turn), generation), Verdict::Changed);
        assert!(state.replace(poll(turn), generation, Arc::new(value)).is_some());
        state
    }

    #[test]
    fn fact_is_read_when_generation_differs() {
        let mut state = read_at(1, 7, "old");
        assert_eq!(state.see(poll(2), 7), Verdict::Same);
        assert_eq!(state.see(poll(3), 8), Verdict::Changed);
        assert_eq!(state.see(poll(3), 6), Verdict::Changed, "a failover took changes back");
        assert_eq!(state.replace(poll(3), 6, Arc::new("before that")).as_deref(), Some(&"old"));
        assert_eq!(state.see(poll(4), 6), Verdict::Same);
    }

    #[test]
    fn earlier_look_that_ends_later_changes_nothing() {
        let mut state = read_at(5, 8, "newer");
        assert_eq!(state.see(poll(4), 7), Verdict::Late);
        assert!(state.replace(poll(4), 7, Arc::new("older")).is_none());
        assert_eq!((*state.value, state.generation), ("newer", Some(8)));
    }

    #[test]
    fn expired_value_is_used_until_later_look_confirms_it() {
        let mut state = read_at(1, 7, "value");
        state.expire(3);
        assert_eq!((*state.value, state.loaded, state.confirmed), ("value", true, None));
        assert_eq!(state.see(poll(3), 7), Verdict::Changed, "the same number may mean another value");
        assert!(state.replace(poll(3), 7, Arc::new("read again")).is_some());
        assert_eq!((*state.value, state.confirmed), ("read again", None));
        assert_eq!(state.see(poll(4), 7), Verdict::Changed);
    }

    #[test]
    fn value_of_overtaken_look_is_stored_unconfirmed() {
        let mut state = State::<u8>::default();
        assert_eq!(state.see(poll(1), 7), Verdict::Changed);
        // A second change, after the poll began.
        state.expire(2);
        assert!(state.replace(poll(1), 7, Arc::new(1)).is_some());
        assert_eq!((*state.value, state.confirmed.is_some(), state.generation), (1, false, None));
        assert_eq!(state.see(poll(3), 7), Verdict::Changed);
        assert!(state.replace(poll(3), 7, Arc::new(2)).is_some());
        assert_eq!((*state.value, state.confirmed.is_some(), state.generation), (2, true, Some(7)));
        assert!(state.replace(poll(2), 6, Arc::new(1)).is_none(), "an earlier poll never replaces a later one");
    }
}
