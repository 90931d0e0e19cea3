//! A live stream of events: one cursor that reads from memory, or from the log while it is behind.
//! No event is lost or repeated between them.

use std::sync::Arc;

use sqlx::PgPool;
use tokio::time::{Instant, timeout_at};

use super::render::RenderedEvent;
use super::sequencer::Sequencer;
use super::tail::{Listener, Next};
use super::{Ahead, Start};
use tenure_domain::event_filter::Filter;
use tenure_store::events::{self, Stretch};

/// Events per read of the log. A stuck client holds this many in memory.
const CATCH_UP_PAGE: usize = 100;

pub struct Stream {
    pool: PgPool,
    listener: Listener,
    filter: Filter,
    /// All passing events up to this position have been read.
    after: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadStart {
    /// The next events were purged. Reading may start after this position.
    Gone(i64),
    /// The position does not exist yet.
    Ahead(Ahead),
}

#[derive(Debug)]
pub enum Step {
    /// Passing events, possibly none.
    Events(Vec<Arc<RenderedEvent>>),
    /// The next events were purged. Reading may start after this position.
    Gone(i64),
    /// The log may have been rolled back. Beginning a new stream checks whether the position is
    /// still valid.
    Ended,
}

impl Stream {
    /// Begins a stream if the log still has the next events. Everything committed before the call
    /// is in the log.
    pub async fn begin(
        pool: PgPool,
        sequencer: &Sequencer,
        listener: Listener,
        start: Start,
        filter: Filter,
    ) -> Result<Result<Self, BadStart>, sqlx::Error> {
        let ends = {
            let mut conn = pool.acquire().await?;
            sequencer.run(&mut conn).await?;
            events::get_ends(&mut conn, sequencer.reached(), sequencer.begins()).await?
        };
        let after = match start {
            Start::Latest => ends.newest,
            Start::After(position) if position < ends.oldest => return Ok(Err(BadStart::Gone(ends.oldest))),
            Start::After(position) if position > ends.newest => {
                return Ok(Err(BadStart::Ahead(Ahead { position, newest: ends.newest })));
            }
            Start::After(position) => position,
        };
        Ok(Ok(Self { pool, listener, filter, after }))
    }

    /// All events up to this position have been read.
    pub fn after(&self) -> i64 {
        self.after
    }

    /// True if the log may have been rolled back since the stream began.
    pub fn has_ended(&self) -> bool {
        self.listener.has_ended()
    }

    /// Waits for the next events, at most until `until`.
    ///
    /// # Errors
    /// If the stream is behind memory and the log cannot be read.
    pub async fn next(&mut self, until: Instant) -> Result<Step, sqlx::Error> {
        match timeout_at(until, self.listener.next(self.after)).await {
            Ok(Next::Events(mut events, through)) => {
                events.retain(|event| self.filter.passes(event.exchange, &event.routing_key, &event.cc));
                self.after = through;
                Ok(Step::Events(events))
            }
            Ok(Next::Behind) => self.catch_up().await,
            Ok(Next::Ended) => Ok(Step::Ended),
            Err(_) => Ok(Step::Events(Vec::new())),
        }
    }

    async fn catch_up(&mut self) -> Result<Step, sqlx::Error> {
        metrics::counter!("tenure_event_reads_total", "who" => "one").increment(1);
        let reading = async {
            let mut conn = self.pool.acquire().await?;
            events::read_on(&mut conn, self.after, CATCH_UP_PAGE).await
        };
        let (events, through) = match self.listener.catch_up(reading).await? {
            Stretch::Events(events, through) => (events, through),
            Stretch::Gone(oldest) => return Ok(Step::Gone(oldest)),
            Stretch::Ahead(_) => return Ok(Step::Ended),
        };
        let passing =
            events.into_iter().filter(|event| self.filter.passes(event.exchange, &event.routing_key, &event.cc));
        let rendered = passing.map(|event| RenderedEvent::render(event).map(Arc::new)).collect::<Result<_, _>>()?;
        self.after = through;
        Ok(Step::Events(rendered))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::Connection as _;
    use tenure_store::connector::Connector;
    use tenure_store::testing::{Proxy, TestDatabase, eventually, until_a_session_waits};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::events::tail::Tail;
    use crate::notifiers::Notifiers;
    use crate::testing::{QUEUE, Queue};

    /// Long enough to connect and read.
    const SHORT: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn stream_retries_after_silent_connection() {
        let database = TestDatabase::create().await;
        let queue = Queue::start(database.options());
        queue.create_one(QUEUE).await;
        let proxy = Proxy::start(database.options()).await;
        let connector = Connector::new(proxy.options().clone());
        let (pool, sequencer) = (connector.pool(), Sequencer::default());
        // Its task has ended, so streams read the log themselves.
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        stop.cancel();
        let tail = Tail::start_with(pool.clone(), sequencer.clone(), Notifiers::default(), &tasks, stop, SHORT);
        let (listener, all) = (tail.listen().unwrap(), Filter::default());
        let begun = Stream::begin(pool, &sequencer, listener, Start::After(0), all).await;
        let mut stream = begun.unwrap().unwrap();
        let mut holder = database.connect().await;
        let mut lock = holder.begin().await.unwrap();
        sqlx::query("LOCK TABLE outbox_order IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
        let silencing = async {
            until_a_session_waits(database.pool()).await;
            proxy.fall_silent();
            lock.rollback().await.unwrap();
        };
        let both = async { tokio::join!(stream.catch_up(), silencing) };
        let (read, ()) = tokio::time::timeout(SHORT * 10, both).await.expect("the silent read is given up");
        assert!(read.is_err(), "{read:?}");
        eventually(
            "both events are read",
            async || matches!(stream.catch_up().await, Ok(Step::Events(events)) if events.len() == 2),
        )
        .await;
        drop((stream, tail, holder));
        queue.stop().await;
        database.finish().await;
    }
}
