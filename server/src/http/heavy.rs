//! Parsing, hashing and compression of large texts, off the event loop. Few such jobs run at once,
//! to leave processors for other requests.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::Share;

/// In bytes. Smaller texts take a millisecond or less.
pub const LARGE_MIN: usize = 256 << 10;
/// Processors per concurrent job; at least one job runs.
const PROCESSORS_PER_PIECE: usize = 2;
/// Fraction of the permits for callers without credentials, at least one. They queue for it
/// separately, because permits are granted in request order and a flood must not delay others.
const ANONYMOUS_PART: usize = 4;

thread_local! {
    /// True if the work on this thread holds a permit.
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone)]
pub struct Heavy {
    turns: Arc<Semaphore>,
    for_anonymous: Arc<Semaphore>,
}

/// The second permit is for callers without credentials.
type Turn = (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>);
type Waiting = Pin<Box<dyn Future<Output = Turn> + Send>>;

impl Heavy {
    #[must_use]
    pub fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with_turns((processors / PROCESSORS_PER_PIECE).max(1))
    }

    pub(super) fn with_turns(turns: usize) -> Self {
        let for_anonymous = (turns / ANONYMOUS_PART).max(1);
        Self { turns: Arc::new(Semaphore::new(turns)), for_anonymous: Arc::new(Semaphore::new(for_anonymous)) }
    }

    /// For the server or callers with credentials; see [`Heavy::run_for`].
    pub async fn run<T: Send + 'static>(&self, size: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.run_for(Share::Authenticated, size, work).await
    }

    /// Runs small work inline, other work on another thread with a permit. The work completes even
    /// if its caller stops waiting. Within [`Heavy::answer`] it uses that permit, because nested
    /// permits would deadlock.
    pub async fn run_for<T: Send + 'static>(
        &self,
        share: Share,
        size: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if size < LARGE_MIN || HAS_TURN.get() {
            return work();
        }
        let turn = self.turn(share).await;
        let working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        // Only a runtime shutdown cancels it, and that ends this task first.
        working.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    /// Runs an operation whose request or response has up to `size` bytes. If large, each poll runs
    /// off the event loop with a permit. Nested calls share it.
    pub async fn answer<F: Future>(&self, share: Share, size: usize, operation: F) -> F::Output {
        if size < LARGE_MIN || Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return operation.await;
        }
        let mut operation = pin!(operation);
        let mut waiting: Option<Waiting> = None;
        poll_fn(move |cx| {
            if HAS_TURN.get() {
                return operation.as_mut().poll(cx);
            }
            let turn = waiting.get_or_insert_with(|| Box::pin(self.turn(share)));
            let _turn = std::task::ready!(turn.as_mut().poll(cx));
            waiting = None;
            // Moves the event loop's other tasks to another thread.
            tokio::task::block_in_place(|| {
                let _marked = Marked::new();
                operation.as_mut().poll(cx)
            })
        })
        .await
    }

    fn turn(&self, share: Share) -> impl Future<Output = Turn> + Send + 'static {
        let turns = Arc::clone(&self.turns);
        let places = (share == Share::Anonymous).then(|| Arc::clone(&self.for_anonymous));
        async move {
            // The semaphores never close. A holder of `turns` never waits for an anonymous permit,
            // so there is no deadlock.
            let place = match places {
                Some(places) => places.acquire_owned().await.ok(),
                None => None,
            };
            (turns.acquire_owned().await.ok(), place)
        }
    }
}

struct Marked;

impl Marked {
    fn new() -> Self {
        HAS_TURN.set(true);
        Self
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        HAS_TURN.set(false);
    }
}

impl Default for Heavy {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn hold() -> std::thread::ThreadId {
        std::thread::sleep(Duration::from_millis(50));
        std::thread::current().id()
    }

    /// Counts ticks of a single-threaded event loop during `work`.
    async fn ticks_during<T>(work: impl Future<Output = T>) -> u32 {
        let mut ticks = 0;
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                _ = &mut work => return ticks,
                () = tokio::time::sleep(Duration::from_millis(1)) => ticks += 1,
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn only_large_work_leaves_the_event_loop() {
        let heavy = Heavy::new();
        assert!(ticks_during(heavy.run(LARGE_MIN, hold)).await > 0);
        assert_eq!(ticks_during(heavy.run(LARGE_MIN - 1, hold)).await, 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_operation_does_not_block_other_tasks() {
        let heavy = Heavy::new();
        let other = tokio::spawn(async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            std::time::Instant::now()
        });
        let working = tokio::spawn(async move {
            let operation = async {
                std::thread::sleep(Duration::from_millis(200));
                tokio::task::yield_now().await;
                std::thread::sleep(Duration::from_millis(200));
                std::time::Instant::now()
            };
            heavy.answer(Share::Authenticated, LARGE_MIN, operation).await
        });
        let (other, working) = (other.await.unwrap(), working.await.unwrap());
        assert!(other < working, "the large operation blocked the other task");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nested_heavy_work_reuses_the_outer_permit() {
        let heavy = Heavy::with_turns(1);
        let one = || async {
            let operation = async {
                tokio::task::yield_now().await;
                heavy.run(LARGE_MIN, hold).await;
                tokio::task::yield_now().await;
                heavy.run(LARGE_MIN, hold).await
            };
            heavy.answer(Share::Authenticated, LARGE_MIN, operation).await
        };
        let nested = async || {
            let waiting = heavy.answer(Share::Authenticated, LARGE_MIN, tokio::task::yield_now());
            heavy.answer(Share::Authenticated, LARGE_MIN, waiting).await;
        };
        let both = futures_util::future::join3(one(), nested(), one());
        assert!(tokio::time::timeout(Duration::from_secs(10), both).await.is_ok(), "deadlock");
        assert!(ticks_during(heavy.run(LARGE_MIN, hold)).await > 0, "runs on another thread again");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn anonymous_flood_does_not_delay_authenticated_work() {
        let heavy = Heavy::with_turns(1);
        let done = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let flood: Vec<_> = (0..10)
            .map(|_| {
                let (heavy, done) = (heavy.clone(), Arc::clone(&done));
                tokio::spawn(async move {
                    heavy.answer(Share::Anonymous, LARGE_MIN, async { hold() }).await;
                    done.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let before = done.load(std::sync::atomic::Ordering::SeqCst);
        heavy.run(LARGE_MIN, hold).await;
        let passed = done.load(std::sync::atomic::Ordering::SeqCst) - before;
        assert!(passed <= 3, "{passed} anonymous jobs ran first");
        assert!(futures_util::future::join_all(flood).await.into_iter().all(|one| one.is_ok()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn concurrent_heavy_work_is_limited() {
        let heavy = Heavy::with_turns(1);
        let running = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let work = |running: Arc<std::sync::atomic::AtomicUsize>| {
            move || {
                let others = running.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                hold();
                running.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                others
            }
        };
        let pieces = (0..4).map(|_| heavy.run(LARGE_MIN, work(Arc::clone(&running))));
        assert_eq!(futures_util::future::join_all(pieces).await, [0; 4]);
    }
}
