//! Work on large texts, apart from the event loop: parsing, hashing and compressing what is large takes a processor for
//! longer than any other request should wait. So few of it runs at once that processors remain for the rest.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::Share;

/// From this size on, in bytes, the work on a text is done apart: a smaller one takes a millisecond or less.
pub const LARGE_MIN: usize = 256 << 10;
/// One piece of large work at once for so many processors, and one at least.
const PROCESSORS_PER_PIECE: usize = 2;
/// Callers without credentials wait for, or have, one turn in so many, and one at least. They queue for it among themselves:
/// turns are given in the order of asking, and callers with credentials must not come behind a flood.
const ANONYMOUS_PART: usize = 4;

thread_local! {
    /// Whether what runs in this thread has a turn.
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// The turns of work on something large.
#[derive(Clone)]
pub struct Heavy {
    turns: Arc<Semaphore>,
    for_anonymous: Arc<Semaphore>,
}

/// A turn, and for a caller without credentials its place among those.
type Turn = (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>);
type Waiting = Pin<Box<dyn Future<Output = Turn> + Send>>;

impl Heavy {
    /// As many turns as this machine's processors allow.
    #[must_use]
    pub fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with_turns((processors / PROCESSORS_PER_PIECE).max(1))
    }

    pub(super) fn with_turns(turns: usize) -> Self {
        let for_anonymous = (turns / ANONYMOUS_PART).max(1);
        Self { turns: Arc::new(Semaphore::new(turns)), for_anonymous: Arc::new(Semaphore::new(for_anonymous)) }
    }

    /// Does work of the server, or for a caller with credentials, as [`Heavy::run_for`] does.
    pub async fn run<T: Send + 'static>(&self, size: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.run_for(Share::Authenticated, size, work).await
    }

    /// Does work on so many bytes: at once, or apart and in its turn. A caller that stops waiting does not end it. A part of an
    /// operation that [`Heavy::answer`] runs is done in the turn of that: two of them would wait for each other.
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
        // Nothing cancels it but the end of the runtime, which ends this task before.
        working.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    /// Answers a request whose body, or answer, may have so many bytes. With a large one everything that the operation does
    /// between two waits is done apart, and in its turn; within an operation that has turns already, in those.
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
            // The loop's other tasks go on in another thread meanwhile.
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
            // Neither is ever closed. A caller with a turn waits for no place, so that this is no deadlock.
            let place = match places {
                Some(places) => places.acquire_owned().await.ok(),
                None => None,
            };
            (turns.acquire_owned().await.ok(), place)
        }
    }
}

/// Marks its thread as one that has a turn.
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

    /// Holds a thread, as parsing does.
    fn hold() -> std::thread::ThreadId {
        std::thread::sleep(Duration::from_millis(50));
        std::thread::current().id()
    }

    /// The loop is one thread, which must be free for a tick while work that takes a thread goes on.
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
    async fn large_work_leaves_the_event_loop_free_and_small_work_stays_in_it() {
        let heavy = Heavy::new();
        assert!(ticks_during(heavy.run(LARGE_MIN, hold)).await > 0);
        assert_eq!(ticks_during(heavy.run(LARGE_MIN - 1, hold)).await, 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn an_operation_on_a_large_body_leaves_the_event_loop_to_others_whenever_it_works() {
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
        assert!(other < working, "the other task waited for the large one");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn large_work_within_an_operation_on_a_large_body_does_not_wait_for_another_turn() {
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
        assert!(tokio::time::timeout(Duration::from_secs(10), both).await.is_ok(), "they wait for each other");
        assert!(ticks_during(heavy.run(LARGE_MIN, hold)).await > 0, "apart again");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_flood_without_credentials_does_not_hold_up_who_has_them() {
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
        assert!(passed <= 3, "it waited for {passed} of them");
        assert!(futures_util::future::join_all(flood).await.into_iter().all(|one| one.is_ok()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn large_work_is_done_a_few_at_once() {
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
