//! Clients cached for at most a second, so that a request costs no query.
//!
//! Concurrent requests share one reading. A change takes effect on every server within a second,
//! without messages between them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::time::Instant;

/// Maximal age, including entries of missing clients.
pub(super) const AGE_MAX: Duration = Duration::from_secs(1);
/// Invented client ids cannot fill the memory.
const ENTRIES_MAX: usize = 10_000;

type Reading<T, E> = Shared<BoxFuture<'static, Result<Option<Arc<T>>, Arc<E>>>>;

struct CachedRead<T, E> {
    begun: Instant,
    reading: Reading<T, E>,
}

/// Values by name, each read again once older than a second. Clones share the cache.
pub(super) struct Cache<T, E> {
    entries: Arc<Mutex<HashMap<String, CachedRead<T, E>>>>,
}

impl<T, E> Clone for Cache<T, E> {
    fn clone(&self) -> Self {
        Self { entries: Arc::clone(&self.entries) }
    }
}

impl<T: Send + Sync + 'static, E: Send + Sync + 'static> Cache<T, E> {
    pub(super) fn new() -> Self {
        Self { entries: Arc::default() }
    }

    /// `read` may use the outdated value.
    pub(super) async fn get<F>(
        &self,
        name: &str,
        read: impl FnOnce(String, Option<Arc<T>>) -> F,
    ) -> Result<Option<Arc<T>>, Arc<E>>
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
    {
        let reading = self.reading(name, read);
        // The common case: no pass through the scheduler.
        if let Some(done) = reading.peek() {
            return done.clone();
        }
        let waiting = Waiting { cache: self, name, reading };
        waiting.reading.clone().await
    }

    fn reading<F>(&self, name: &str, read: impl FnOnce(String, Option<Arc<T>>) -> F) -> Reading<T, E>
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
    {
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(name)
            && now.duration_since(entry.begun) < AGE_MAX
        {
            return entry.reading.clone();
        }
        let outdated = entries.get(name).and_then(|entry| entry.reading.peek()?.clone().ok()?);
        let reading = read(name.to_owned(), outdated);
        let reading = reading.map(|done| done.map(|value| value.map(Arc::new)).map_err(Arc::new));
        let reading = reading.boxed().shared();
        // Clearing costs each existing client one reading, which happens every second anyway.
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        entries.insert(name.to_owned(), CachedRead { begun: now, reading: reading.clone() });
        reading
    }

    pub(super) fn invalidate(&self, name: &str) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub(super) fn drop_all(&self) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn remove(&self, name: &str, unwanted: &Reading<T, E>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.get(name).is_some_and(|entry| entry.reading.ptr_eq(unwanted)) {
            entries.remove(name);
        }
    }
}

/// A request that waits for a reading. Failures are not cached. An abandoned reading must leave the
/// cache, where it would keep its database connection.
struct Waiting<'a, T: Send + Sync + 'static, E: Send + Sync + 'static> {
    cache: &'a Cache<T, E>,
    name: &'a str,
    reading: Reading<T, E>,
}

impl<T: Send + Sync + 'static, E: Send + Sync + 'static> Drop for Waiting<'_, T, E> {
    fn drop(&mut self) {
        if !matches!(self.reading.peek(), Some(Ok(_))) {
            self.cache.remove(self.name, &self.reading);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Source {
        reads: Arc<AtomicUsize>,
        cache: Cache<usize, &'static str>,
    }

    impl Source {
        fn new() -> Self {
            Self { reads: Arc::default(), cache: Cache::new() }
        }

        /// Each reading yields once and returns its number, mapped by `answer`.
        async fn get(
            &self,
            name: &str,
            answer: fn(usize) -> Result<Option<usize>, &'static str>,
        ) -> Result<Option<usize>, &'static str> {
            let reads = Arc::clone(&self.reads);
            let read = |_, _| async move {
                tokio::task::yield_now().await;
                answer(reads.fetch_add(1, Ordering::SeqCst) + 1)
            };
            self.cache.get(name, read).await.map(|value| value.as_deref().copied()).map_err(|error| *error)
        }

        fn reads(&self) -> usize {
            self.reads.load(Ordering::SeqCst)
        }
    }

    const FOUND: fn(usize) -> Result<Option<usize>, &'static str> = |number| Ok(Some(number));
    const MISSING: fn(usize) -> Result<Option<usize>, &'static str> = |_| Ok(None);

    #[tokio::test(flavor = "current_thread")]
    async fn concurrent_requests_share_one_reading() {
        let source = Source::new();
        let (a, b, c) = tokio::join!(source.get("ci", FOUND), source.get("ci", FOUND), source.get("other", FOUND));
        assert_eq!((a, b), (Ok(Some(1)), Ok(Some(1))));
        assert_eq!(c, Ok(Some(2)));
        assert_eq!(source.get("ci", FOUND).await, Ok(Some(1)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn entry_found_or_missing_expires_after_a_second() {
        let source = Source::new();
        assert_eq!(source.get("ci", FOUND).await, Ok(Some(1)));
        assert_eq!(source.get("missing", MISSING).await, Ok(None));
        for entry in source.cache.entries.lock().unwrap().values_mut() {
            entry.begun -= AGE_MAX - Duration::from_millis(200);
        }
        assert_eq!(source.get("ci", FOUND).await, Ok(Some(1)));
        assert_eq!(source.get("missing", FOUND).await, Ok(None));
        for entry in source.cache.entries.lock().unwrap().values_mut() {
            entry.begun -= Duration::from_millis(200);
        }
        assert_eq!(source.get("ci", MISSING).await, Ok(None));
        assert_eq!(source.get("missing", FOUND).await, Ok(Some(4)));
        assert_eq!(source.reads(), 4);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn failure_is_not_cached() {
        let source = Source::new();
        assert_eq!(source.get("ci", |_| Err("gone")).await, Err("gone"));
        assert_eq!(source.get("ci", FOUND).await, Ok(Some(2)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn invalidated_entry_is_read_again_at_once() {
        let source = Source::new();
        assert_eq!(source.get("ci", FOUND).await, Ok(Some(1)));
        let mut begun_before = Box::pin(source.get("other", FOUND));
        assert!(futures_util::poll!(begun_before.as_mut()).is_pending());
        source.cache.invalidate("ci");
        source.cache.invalidate("other");
        assert_eq!(source.get("ci", MISSING).await, Ok(None));
        // A reading that began before the change may see the old state; a later one must not.
        assert_eq!(source.get("other", FOUND).await, Ok(Some(3)));
        assert_eq!(begun_before.await, Ok(Some(4)));
        assert_eq!(source.get("other", FOUND).await, Ok(Some(3)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn reading_receives_outdated_value() {
        let cache: Cache<usize, &'static str> = Cache::new();
        let get = async || {
            let read = |_, before: Option<Arc<usize>>| async move { Ok(Some(before.map_or(1, |before| *before + 1))) };
            cache.get("ci", read).await.unwrap().as_deref().copied()
        };
        assert_eq!((get().await, get().await), (Some(1), Some(1)));
        cache.entries.lock().unwrap().get_mut("ci").unwrap().begun -= AGE_MAX;
        assert_eq!(get().await, Some(2));
        cache.invalidate("ci");
        assert_eq!(get().await, Some(1));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn dropped_request_leaves_others_waiting() {
        let source = Source::new();
        let mut first = Box::pin(source.get("ci", FOUND));
        let mut second = Box::pin(source.get("ci", FOUND));
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        let both = futures_util::future::join(second.as_mut(), async move { drop(first) });
        assert_eq!(both.await.0, Ok(Some(1)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn reading_without_waiter_is_dropped() {
        let source = Source::new();
        let mut only = Box::pin(source.get("ci", FOUND));
        assert!(futures_util::poll!(only.as_mut()).is_pending());
        drop(only);
        assert!(source.cache.entries.lock().unwrap().is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn invented_names_cannot_fill_memory() {
        let source = Source::new();
        for number in 0..=ENTRIES_MAX {
            let _ = source.get(&number.to_string(), MISSING).await;
        }
        assert!(source.cache.entries.lock().unwrap().len() <= ENTRIES_MAX);
    }
}
