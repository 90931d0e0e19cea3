//! Collects and checks the settings of a consumer.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tenure_api::ids::{InvalidId, TaskQueueId};

use super::balance::BALANCE_EVERY;
use super::balancer::Balancer;
use super::by_kind::ByKind;
use super::handler::{Handler, Run, Typed};
use super::inner::Inner;
use super::outcome::OnPanic;
use super::progress::ASK_EVERY;
use super::running::Consumer;
use super::settings::{CAPACITY_MAX, Settings};
use super::shares::ClaimShare;
use super::source::{AnySource, Source};
use crate::keep::HEARTBEAT;
use crate::{Client, WorkerName};

/// Default and maximum wait of a call for work.
const WAIT: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(30);
/// Default time to live of a consumer's session.
///
/// ```
/// # use tenure_client::consumer::ConsumerBuilder;
/// use tenure_client::consumer::SESSION_TTL;
///
/// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
/// builder.session(SESSION_TTL / 2)
/// # }
/// ```
pub const SESSION_TTL: Duration = Duration::from_secs(120);
/// The grace is at most a third of the time to live.
const GRACE_SHARE: u32 = 3;
const TTL_MIN: Duration = Duration::from_secs(15);
const TTL_MAX: Duration = Duration::from_secs(3600);
/// More polls would cost the server more than the task.
const COMMANDS_EVERY_MIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
enum Wanted {
    /// A session unless there is a source.
    ByDefault,
    Session(Duration),
    Nothing,
}

/// Settings of a [`Consumer`]. Name and handler are required.
///
/// ```
/// use std::time::Duration;
/// use tenure_client::Client;
/// use tenure_client::consumer::{Consumer, Job, OnPanic, Stop};
///
/// # fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let consumer = Consumer::builder(client, "acme/mail".parse()?)
///     .name("eu", "mail-1")
///     .capacity(8)
///     .session(Duration::from_secs(60))
///     .grace(Duration::from_secs(10))
///     .on_panic(OnPanic::Retry)
///     .debug_port(8090)
///     .handler(|job: Job, _stop: Stop| async move { println!("{}", job.payload()) })
///     .build()?;
/// # drop(consumer);
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder {
    client: Client,
    queue: TaskQueueId,
    name: Option<(String, String)>,
    capacity: usize,
    session: Wanted,
    wait: Duration,
    grace: Option<Duration>,
    heartbeat: f64,
    on_panic: OnPanic,
    balancer: Option<Arc<dyn Balancer>>,
    balance_every: Duration,
    commands_every: Duration,
    debug_port: Option<u16>,
    keep_late: bool,
    source: Option<Box<dyn AnySource>>,
    partition: Option<String>,
    handler: Option<Arc<dyn Run>>,
    /// Handlers by kind.
    kinds: Vec<(String, Arc<dyn Run>)>,
}

/// Why a consumer cannot be built.
///
/// ```
/// use tenure_client::Client;
/// use tenure_client::consumer::{BuildError, Consumer};
///
/// let client = Client::builder().root_url("http://127.0.0.1:8080").build()?;
/// let built = Consumer::builder(client, "acme/mail".parse()?).name("eu", "mail-1").build();
/// assert_eq!(built.err(), Some(BuildError::NoHandler));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The worker's group or id is invalid.
    #[error(transparent)]
    Name(#[from] InvalidId),
    #[error("a consumer needs a name: call ConsumerBuilder::name")]
    NoName,
    #[error("a consumer needs a handler: call ConsumerBuilder::handler or ConsumerBuilder::on")]
    NoHandler,
    #[error("the kind {0:?} has two handlers: leave one of them out")]
    SameKind(String),
    /// A setting is out of range or conflicts with another.
    #[error("{0}")]
    OutOfRange(&'static str),
}

impl Consumer {
    /// Returns a builder. The client needs the scopes `queue:claim-work:<queue>` and
    /// `queue:worker-id:<group>/<id>`. If the queue assigns its runs, it also needs
    /// `queue:claim-task:<queue>` and a [session](ConsumerBuilder::session), the default.
    ///
    /// ```
    /// # use tenure_client::Client;
    /// # use tenure_client::consumer::{Consumer, ConsumerBuilder};
    /// # fn example(client: Client) -> Result<ConsumerBuilder, tenure_client::InvalidId> {
    /// let builder = Consumer::builder(client, "acme/mail".parse()?);
    /// # Ok(builder) }
    /// ```
    pub fn builder(client: Client, queue: TaskQueueId) -> ConsumerBuilder {
        ConsumerBuilder::new(client, queue)
    }
}

impl ConsumerBuilder {
    fn new(client: Client, queue: TaskQueueId) -> Self {
        Self {
            client,
            queue,
            name: None,
            capacity: 1,
            session: Wanted::ByDefault,
            wait: WAIT,
            grace: None,
            heartbeat: HEARTBEAT,
            on_panic: OnPanic::default(),
            balancer: None,
            balance_every: BALANCE_EVERY,
            commands_every: ASK_EVERY,
            debug_port: None,
            keep_late: false,
            source: None,
            partition: None,
            handler: None,
            kinds: Vec::new(),
        }
    }

    /// Sets the worker's group, often a region, and its id in the group. Concurrent consumers need
    /// different names.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.name("eu", "mail-1")
    /// # }
    /// ```
    pub fn name(self, group: &str, id: &str) -> Self {
        Self { name: Some((group.to_owned(), id.to_owned())), ..self }
    }

    /// Sets the maximum of concurrent jobs: 1 to 1000, 1 by default.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.capacity(8)
    /// # }
    /// ```
    pub fn capacity(self, jobs: usize) -> Self {
        Self { capacity: jobs, ..self }
    }

    /// Sets the time to live of the session: 15 s to an hour, [`SESSION_TTL`] by default. If the
    /// process is dead or disconnected for longer, its tasks go to others. A starting consumer
    /// takes over the session of its name, and the previous process ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.session(Duration::from_secs(60))
    /// # }
    /// ```
    pub fn session(self, ttl: Duration) -> Self {
        Self { session: Wanted::Session(ttl), ..self }
    }

    /// Disables the session, to survive longer network outages. Each job then lasts as long as its
    /// lease, a run ended from outside is noticed at its next renewal, and commands do not arrive.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.without_session()
    /// # }
    /// ```
    pub fn without_session(self) -> Self {
        Self { session: Wanted::Nothing, ..self }
    }

    /// Sets the wait of a call for work: 20 s by default and at most. Only whole seconds count;
    /// with less than one, empty calls follow each other every half second.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.wait(Duration::from_secs(5))
    /// # }
    /// ```
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: wait.min(WAIT), ..self }
    }

    /// Sets how long a handler has to stop before its run may go to another worker, if the server
    /// cannot be reached. 30 s by default, at most a third of the lease or session.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.grace(Duration::from_secs(10))
    /// # }
    /// ```
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self }
    }

    /// Sets the share of a lease after which it is renewed, between 0 and 1: ¾ by default. Renewal
    /// is earlier to leave time for retries before the grace.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.heartbeat(0.5)
    /// # }
    /// ```
    pub fn heartbeat(self, part_of_lease: f64) -> Self {
        Self { heartbeat: part_of_lease, ..self }
    }

    /// Sets the outcome of a panic: by default internal-error.
    ///
    /// ```
    /// # use tenure_client::consumer::OnPanic;
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.on_panic(OnPanic::Retry)
    /// # }
    /// ```
    pub fn on_panic(self, on_panic: OnPanic) -> Self {
        Self { on_panic, ..self }
    }

    /// Sets the balancer. The consumer then claims tasks by name, one at a time, and its client
    /// needs `queue:claim-task:<queue>`, `queue:pending-list:<queue>`, `tenure:list-events` and
    /// `tenure:get-queue:<queue>`.
    ///
    /// ```
    /// # use tenure_client::consumer::balancer::Fair;
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.balancer(Fair::default())
    /// # }
    /// ```
    pub fn balancer(self, balancer: impl Balancer) -> Self {
        Self { balancer: Some(Arc::new(balancer)), ..self }
    }

    /// Sets the interval of balancing: more than zero, a quarter of an hour by default. Up to 10 s
    /// are added, to spread workers started together.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::consumer::balancer::Fair;
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.balancer(Fair::default()).balance_every(Duration::from_secs(60))
    /// # }
    /// ```
    pub fn balance_every(self, every: Duration) -> Self {
        Self { balance_every: every, ..self }
    }

    /// Sets how often a consumer without a session polls for commands for each task of a
    /// [`Machine`](super::statemachine::Machine): 20 s by default, at least 1 s. With a session,
    /// commands arrive at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.without_session().commands_every(Duration::from_secs(5))
    /// # }
    /// ```
    pub fn commands_every(self, every: Duration) -> Self {
        Self { commands_every: every, ..self }
    }

    /// Serves the [status](super::ConsumerHandle::status) at `GET /debug` on this port of
    /// 127.0.0.1; 0 selects a free port. Off by default.
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.debug_port(8090)
    /// # }
    /// ```
    pub fn debug_port(self, port: u16) -> Self {
        Self { debug_port: Some(port), ..self }
    }

    /// Lets a handler go on when its run was taken away by the queue's `completeTime`, or because its
    /// scheduler was replaced, if the queue's `lateResult` is `first-wins`. A completed result then
    /// counts if no other run has resolved the task before; other outcomes are not reported. Until
    /// its end the handler takes up a slot, [`Stop::how_lost`](super::Stop::how_lost) names the end
    /// of the run, and log and checkpoints are no longer stored. False by default: such handlers are
    /// asked to stop. Needs a session, and no [source](Self::source).
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.capacity(8).keep_late(true)
    /// # }
    /// ```
    pub fn keep_late(self, keep_late: bool) -> Self {
        Self { keep_late, ..self }
    }

    /// Sets a [source](super::source) of work instead of own calls. Such a consumer has no
    /// balancer, a session only if one is [set](Self::session), no limit of its capacity, and
    /// ignores [`wait`](Self::wait).
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # use tenure_client::consumer::source::ClaimWork;
    /// # use tenure_client::{Client, InvalidId, WorkerName};
    /// # fn example(builder: ConsumerBuilder, client: Client, me: WorkerName)
    /// #     -> Result<ConsumerBuilder, InvalidId> {
    /// // Claims from any server of the Queue API.
    /// let source = ClaimWork::new(client, "proj/linux".parse()?, me);
    /// # Ok(
    /// builder.source(source)
    /// # ) }
    /// ```
    pub fn source(self, source: impl Source) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }

    /// Joins a [partition group](crate::partition) and claims only tasks of this member's share. The
    /// policy of the queue must name the group. A share moves to another member only after the jobs
    /// that it loses have ended. As with a [source](Self::source), such a consumer has no balancer,
    /// and a session only if one is [set](Self::session).
    ///
    /// ```
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.partition("mail")
    /// # }
    /// ```
    pub fn partition(self, group: &str) -> Self {
        Self { partition: Some(group.to_owned()), ..self }
    }

    /// Sets the handler: an async closure or a [`Handler`]. A task whose payload is not a `P` ends
    /// as malformed-payload.
    ///
    /// ```
    /// # use tenure_client::consumer::{ConsumerBuilder, Job, Stop};
    /// #[derive(serde::Deserialize)]
    /// struct Sum { numbers: Vec<i64> }
    ///
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.handler(|job: Job<Sum>, _stop: Stop| async move {
    ///     let sum = job.payload().numbers.iter().try_fold(0_i64, |sum, &number| sum.checked_add(number));
    ///     sum.ok_or("the sum is too large")
    /// })
    /// # }
    /// ```
    pub fn handler<P, H>(self, handler: H) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        H: Handler<P>,
    {
        Self { handler: Some(Arc::new(Typed::new(handler))), ..self }
    }

    /// Adds the handler of a kind of jobs, instead of one [`handler`](Self::handler) for all. The
    /// payloads are `{"kind": …, "args": …}`, as written by
    /// [`Enqueue::kind`](crate::Enqueue::kind) and by the Python library. A job of another kind, or
    /// whose arguments are not a `P`, ends as malformed-payload. [`Limited`](super::Limited) adds a
    /// concurrency and a timeout.
    ///
    /// ```
    /// # use tenure_client::consumer::{ConsumerBuilder, Job, Stop};
    /// #[derive(serde::Deserialize)]
    /// struct Email { to: String }
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Image { url: String, width: u32 }
    ///
    /// async fn send(job: Job<Email>, _stop: Stop) {
    ///     println!("to {}", job.payload().to);
    /// }
    ///
    /// async fn resize(job: Job<Image>, _stop: Stop) {
    ///     println!("{} to {}", job.payload().url, job.payload().width);
    /// }
    ///
    /// # fn example(builder: ConsumerBuilder) -> ConsumerBuilder {
    /// builder.on("send", send).on("resize", resize)
    /// # }
    /// ```
    pub fn on<P, H>(mut self, kind: &str, handler: H) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        H: Handler<P>,
    {
        self.kinds.push((kind.to_owned(), Arc::new(Typed::new(handler))));
        self
    }

    /// Builds the consumer without sending a request.
    ///
    /// # Errors
    /// The name or the handler is missing, the name is invalid, a kind has two handlers, a setting
    /// is out of range, or two settings exclude each other.
    ///
    /// ```no_run
    /// # use tenure_client::consumer::ConsumerBuilder;
    /// # async fn example(builder: ConsumerBuilder) -> Result<(), Box<dyn std::error::Error>> {
    /// let consumer = builder.build()?;
    /// consumer.run().await?;
    /// # Ok(()) }
    /// ```
    pub fn build(self) -> Result<Consumer, BuildError> {
        let Self {
            client,
            queue,
            capacity,
            session,
            wait,
            heartbeat,
            on_panic,
            balancer,
            balance_every,
            commands_every,
            debug_port,
            keep_late,
            source,
            partition,
            ..
        } = self;
        let (group, id) = self.name.ok_or(BuildError::NoName)?;
        let name = WorkerName { group: group.parse()?, id: id.parse()? };
        let handler = handler_of(self.handler, self.kinds)?;
        let source = source_of(source, partition, (&client, &queue, &name))?;
        if capacity == 0 || capacity > CAPACITY_MAX && source.is_none() {
            return Err(BuildError::OutOfRange("capacity must be from 1 to 1000"));
        }
        let session = match session {
            Wanted::ByDefault => source.is_none().then_some(SESSION_TTL),
            Wanted::Session(ttl) => Some(ttl),
            Wanted::Nothing => None,
        };
        if session.is_some_and(|ttl| !(TTL_MIN..=TTL_MAX).contains(&ttl)) {
            return Err(BuildError::OutOfRange("the ttl of session must be from 15 s to 3600 s"));
        }
        if !(heartbeat > 0.0 && heartbeat < 1.0) {
            return Err(BuildError::OutOfRange("heartbeat must be a fraction of the lease, between 0 and 1"));
        }
        let grace_most = session.map_or(GRACE, |ttl| GRACE.min(ttl / GRACE_SHARE));
        let grace = self.grace.unwrap_or(grace_most);
        if balance_every.is_zero() {
            return Err(BuildError::OutOfRange("balance_every must be more than zero"));
        }
        if commands_every < COMMANDS_EVERY_MIN {
            return Err(BuildError::OutOfRange("commands_every must be a second or more"));
        }
        if source.is_some() && balancer.is_some() {
            return Err(BuildError::OutOfRange("a consumer with a source has no balancer: leave one of them out"));
        }
        if keep_late && (session.is_none() || source.is_some()) {
            return Err(BuildError::OutOfRange("keep_late needs a session, and no source"));
        }
        let settings = Settings {
            client,
            queue,
            name,
            capacity,
            session,
            wait,
            grace,
            heartbeat,
            on_panic,
            balancer,
            balance_every,
            commands_every,
            debug_port,
            keep_late,
            has_source: source.is_some(),
        };
        Ok(Consumer::new(Inner::new(settings, handler), source))
    }
}

fn source_of(
    source: Option<Box<dyn AnySource>>,
    partition: Option<String>,
    (client, queue, name): (&Client, &TaskQueueId, &WorkerName),
) -> Result<Option<Box<dyn AnySource>>, BuildError> {
    match (source, partition) {
        (Some(_), Some(_)) => {
            Err(BuildError::OutOfRange("a consumer has a source or claims its share of a partition group, not both"))
        }
        (None, Some(group)) => Ok(Some(Box::new(ClaimShare::new(client.clone(), queue.clone(), name.clone(), group)))),
        (source, None) => Ok(source),
    }
}

fn handler_of(handler: Option<Arc<dyn Run>>, kinds: Vec<(String, Arc<dyn Run>)>) -> Result<Arc<dyn Run>, BuildError> {
    match (handler, kinds.is_empty()) {
        (Some(handler), true) => Ok(handler),
        (Some(_), false) => Err(BuildError::OutOfRange("a consumer has one handler or one for each kind, not both")),
        (None, true) => Err(BuildError::NoHandler),
        (None, false) => Ok(Arc::new(ByKind::new(kinds)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inner::tests::builder;
    use super::*;
    use crate::consumer::balancer::Sleep;
    use crate::consumer::source::ClaimWork;
    use crate::consumer::{Job, Stop};

    fn with_source() -> ConsumerBuilder {
        let ConsumerBuilder { client, queue, .. } = builder();
        let me = WorkerName { group: "eu".parse().unwrap(), id: "mail-1".parse().unwrap() };
        builder().source(ClaimWork::new(client, queue, me))
    }

    #[test]
    fn session_is_the_default_without_a_source() {
        let session = |builder: ConsumerBuilder| builder.build().unwrap().inner.settings.session;
        let minute = Duration::from_secs(60);
        assert_eq!(session(builder()), Some(SESSION_TTL));
        assert_eq!(session(builder().session(minute)), Some(minute));
        assert_eq!(session(builder().without_session()), None);
        assert_eq!(session(with_source()), None);
        assert_eq!(session(with_source().session(minute)), Some(minute));
    }

    #[test]
    fn bad_settings_are_refused() {
        assert!(builder().build().is_ok());
        let refusal = |builder: ConsumerBuilder| builder.build().err().unwrap();
        assert_eq!(refusal(ConsumerBuilder { name: None, ..builder() }), BuildError::NoName);
        assert_eq!(refusal(ConsumerBuilder { handler: None, ..builder() }), BuildError::NoHandler);
        assert!(matches!(refusal(builder().name("", "mail-1")), BuildError::Name(_)));
        let kind = |builder: ConsumerBuilder| builder.on("send", |_job: Job, _stop: Stop| async {});
        assert!(matches!(refusal(kind(builder())), BuildError::OutOfRange(_)));
        let kinds = || ConsumerBuilder { handler: None, ..builder() };
        assert!(kind(kinds()).build().is_ok());
        assert_eq!(refusal(kind(kind(kinds()))), BuildError::SameKind("send".to_owned()));
        let second = Duration::from_secs(1);
        for wrong in [
            builder().capacity(0),
            builder().capacity(1001),
            builder().session(14 * second),
            builder().session(3601 * second),
            builder().heartbeat(0.0),
            builder().heartbeat(1.0),
            builder().heartbeat(f64::NAN),
            builder().balance_every(Duration::ZERO),
            builder().commands_every(second / 2),
        ] {
            assert!(matches!(refusal(wrong), BuildError::OutOfRange(_)));
        }
        assert!(builder().session(15 * second).capacity(1000).commands_every(second).build().is_ok());
        assert!(with_source().capacity(1001).build().is_ok());
        assert!(builder().keep_late(true).build().is_ok());
        for wrong in [
            with_source().balancer(Sleep::default()),
            with_source().capacity(0),
            with_source().session(15 * second).keep_late(true),
            builder().without_session().keep_late(true),
        ] {
            assert!(matches!(refusal(wrong), BuildError::OutOfRange(_)));
        }
    }
}
