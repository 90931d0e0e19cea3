//! Limits of one handler.

use std::fmt;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::handler::{Handler, Job};
use super::outcome::Outcome;
use super::stop::Stop;
use crate::Failure;

const TIMEOUT_KIND: &str = "timeout";

/// A handler with a concurrency and a timeout of its own, for example of one kind of jobs.
///
/// ```
/// use std::time::Duration;
/// use tenure_client::consumer::{Consumer, Job, Limited, Stop};
///
/// #[derive(serde::Deserialize)]
/// struct Image { url: String, width: u32 }
///
/// async fn resize(job: Job<Image>, _stop: Stop) -> std::io::Result<()> {
///     println!("{} to {}", job.payload().url, job.payload().width);
///     Ok(())
/// }
///
/// # fn example(client: tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let consumer = Consumer::builder(client, "acme/media".parse()?)
///     .name("eu", "media-1")
///     .capacity(16)
///     .on("resize", Limited::new(resize).concurrency(2).timeout(Duration::from_secs(60)))
///     .on("sweep", |_job: Job<()>, _stop: Stop| async {})
///     .build()?;
/// # drop(consumer);
/// # Ok(()) }
/// ```
pub struct Limited<H> {
    handler: H,
    slots: Option<Semaphore>,
    timeout: Option<Duration>,
}

impl<H> Limited<H> {
    /// Wraps a handler, without limits.
    ///
    /// ```
    /// # use tenure_client::consumer::{Job, Limited, Stop};
    /// # async fn resize(_job: Job, _stop: Stop) {}
    /// let limited = Limited::new(resize);
    /// # drop(limited);
    /// ```
    #[must_use]
    pub fn new(handler: H) -> Self {
        Self { handler, slots: None, timeout: None }
    }

    /// Sets the maximum of concurrent calls of the handler; 0 counts as 1. Further jobs wait, each
    /// in a slot of the consumer's capacity, and are released if they must stop before they start.
    ///
    /// ```
    /// # use tenure_client::consumer::{Job, Limited, Stop};
    /// # async fn resize(_job: Job, _stop: Stop) {}
    /// let limited = Limited::new(resize).concurrency(2);
    /// # drop(limited);
    /// ```
    #[must_use]
    pub fn concurrency(self, jobs: usize) -> Self {
        Self { slots: Some(Semaphore::new(jobs.clamp(1, Semaphore::MAX_PERMITS))), ..self }
    }

    /// Sets the timeout of a call of the handler. Then its future is dropped at its next `.await`,
    /// and the job is failed with the class `timeout`. Threads and tasks that it started go on.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::consumer::{Job, Limited, Stop};
    /// # async fn resize(_job: Job, _stop: Stop) {}
    /// let limited = Limited::new(resize).timeout(Duration::from_secs(60));
    /// # drop(limited);
    /// ```
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

impl<P: Send + 'static, H: Handler<P>> Handler<P> for Limited<H> {
    async fn run(&self, job: Job<P>, stop: Stop) -> Outcome {
        let _permit = match &self.slots {
            None => None,
            Some(slots) => tokio::select! {
                biased;
                () = stop.requested() => return Outcome::Release { after: None },
                permit = slots.acquire() => permit.ok(),
            },
        };
        let working = self.handler.run(job, stop);
        match self.timeout {
            None => working.await,
            Some(limit) => timeout(limit, working).await.unwrap_or_else(|_elapsed| timed_out(limit)),
        }
    }
}

fn timed_out(limit: Duration) -> Outcome {
    let message = format!("the job took longer than {} s", limit.as_secs_f64());
    Outcome::Failed(None).because_of(Failure { message, kind: Some(TIMEOUT_KIND.to_owned()), exit_code: None })
}

impl<H> fmt::Debug for Limited<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slots, timeout, .. } = self;
        f.debug_struct("Limited").field("slots", slots).field("timeout", timeout).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, stop};

    async fn end_unless_stuck(job: Job<bool>, _stop: Stop) {
        if *job.payload() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    #[tokio::test]
    async fn timeout_does_not_count_the_wait_for_a_slot() {
        let limit = Duration::from_secs(1);
        let limited = Limited::new(end_unless_stuck).concurrency(1).timeout(limit);
        let (stuck, waited) = tokio::join!(limited.run(job(true), stop()), limited.run(job(false), stop()));
        assert_eq!((stuck, waited), (timed_out(limit), Outcome::Completed(None)));
    }
}
