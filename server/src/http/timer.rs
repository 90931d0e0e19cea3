//! A connection's timer. Its waits, for a head and for a response, follow each other, and nearly
//! all end early. Each change of a timer takes the runtime's shared lock. So a connection keeps one
//! timer and resets it only if it fired too early or would fire too late.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Longest setting: the shortest of the usual waits. The timer thus fires before the next wait ends
/// and needs no reset when that wait begins.
const SET_MAX: Duration = Duration::from_secs(60);

/// The idle timer. Clones share it.
#[derive(Clone, Default)]
pub(super) struct ConnectionTimer(Arc<Mutex<Option<Pin<Box<Sleep>>>>>);

impl ConnectionTimer {
    pub(super) fn wait_until(&self, until: Instant) -> Wait {
        Wait { sleep: self.kept().take(), until, timer: self.clone() }
    }

    fn kept(&self) -> MutexGuard<'_, Option<Pin<Box<Sleep>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// On drop it returns the timer, still set.
pub(super) struct Wait {
    /// None before the first poll, unless an earlier wait left a timer.
    sleep: Option<Pin<Box<Sleep>>>,
    until: Instant,
    timer: ConnectionTimer,
}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let until = this.until;
        let set_for = |now: Instant| until.min(now + SET_MAX);
        let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep_until(set_for(Instant::now()))));
        if sleep.deadline() > until {
            sleep.as_mut().reset(until);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            let now = Instant::now();
            if now >= until {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(set_for(now));
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(sleep) = self.sleep.take() {
            *self.timer.kept() = Some(sleep);
        }
    }
}

impl hyper::rt::Sleep for Wait {}

impl hyper::rt::Timer for ConnectionTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(self.wait_until(Instant::now() + duration))
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(self.wait_until(deadline.into()))
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(30);

    /// Waits for `after`, after abandoning a wait for `given_up`.
    async fn wait(after: Duration, given_up: Duration) -> Duration {
        let timer = ConnectionTimer::default();
        let began = Instant::now();
        let mut first = timer.wait_until(began + given_up);
        assert!(futures_util::poll!(&mut first).is_pending());
        drop(first);
        timer.wait_until(began + after).await;
        began.elapsed()
    }

    #[tokio::test]
    async fn wait_ignores_deadline_of_abandoned_wait() {
        for given_up in [SHORT / 5, SHORT, LONG] {
            let took = wait(SHORT, given_up).await;
            assert!(SHORT <= took && took < LONG, "{took:?} after a wait of {given_up:?}");
        }
    }

    #[tokio::test]
    async fn only_successive_waits_share_a_timer() {
        let timer = ConnectionTimer::default();
        let mut one = timer.wait_until(Instant::now() + LONG);
        assert!(futures_util::poll!(&mut one).is_pending());
        let mut other = timer.wait_until(Instant::now() + SHORT);
        assert!(other.sleep.is_none());
        (&mut other).await;
        assert!(futures_util::poll!(&mut one).is_pending());
        drop((one, other));
        assert!(timer.wait_until(Instant::now()).sleep.is_some());
    }
}
