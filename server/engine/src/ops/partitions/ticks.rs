//! The calls of members. Calls of one group that arrive together share a transaction: after each,
//! the next one of the group begins [`GATHERED_FOR`] later. A group that is called rarely is answered
//! at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use sqlx::{Connection, PgPool};
use tenure_domain::events::note::Note;
use tenure_domain::partition::{Event, Group, MEMBERS_MAX, Share, State, step};
use tenure_store::{partitions, policies, session};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::missing;
use crate::essential;
use crate::failure::OpError;
use crate::notifiers::{Effects, Notifiers};

const GATHERED_FOR: Duration = Duration::from_millis(50);
/// Transactions at the same time, each of another group.
const TRANSACTIONS_MAX: usize = 3;
/// Timeout of a transaction: the database may have gone silent.
const TRANSACTION_MAX: Duration = Duration::from_secs(10);

/// The answer to a call.
#[derive(Debug, Clone)]
pub struct Ticked {
    /// None for a member that has left.
    pub share: Option<Share>,
    pub group: Group,
    /// The time of the database, at which the share was read.
    pub now: DateTime<Utc>,
}

struct Call {
    event: Event,
    reply: oneshot::Sender<Result<Ticked, OpError>>,
}

/// Clones share the task.
#[derive(Debug, Clone)]
pub struct PartitionTicks {
    /// Bounded by the requests of the server, which wait for their answers.
    arrivals: mpsc::UnboundedSender<(String, Call)>,
}

impl PartitionTicks {
    /// Starts the task. It ends with the last handle.
    #[must_use]
    pub fn start(pool: PgPool, notifiers: Notifiers, tasks: &TaskTracker) -> Self {
        let (arrivals, inbox) = mpsc::unbounded_channel();
        let transactions = Arc::new(Semaphore::new(TRANSACTIONS_MAX));
        let task =
            Task { inbox, pool, notifiers, transactions, waiting: HashMap::new(), busy: FuturesUnordered::new() };
        essential::spawn(tasks, task.run());
        Self { arrivals }
    }

    pub(super) async fn call(&self, group: &str, event: Event) -> Result<Ticked, OpError> {
        let (reply, answer) = oneshot::channel();
        // The task ends only after this sender.
        drop(self.arrivals.send((group.to_owned(), Call { event, reply })));
        answer.await.unwrap_or(Err(OpError::Unavailable))
    }
}

struct Task {
    inbox: mpsc::UnboundedReceiver<(String, Call)>,
    pool: PgPool,
    notifiers: Notifiers,
    transactions: Arc<Semaphore>,
    /// Calls for the next transaction of each busy group.
    waiting: HashMap<String, Vec<Call>>,
    /// Groups with a transaction, or shortly after it.
    busy: FuturesUnordered<BoxFuture<'static, String>>,
}

impl Task {
    async fn run(mut self) {
        loop {
            tokio::select! {
                arrived = self.inbox.recv() => match arrived {
                    Some((group, call)) => self.enter(group, call),
                    None => break,
                },
                Some(group) = self.busy.next() => self.begin_next(group),
            }
        }
        // Every call has been answered or dropped by its caller.
        while self.busy.next().await.is_some() {}
    }

    fn enter(&mut self, group: String, call: Call) {
        if let Some(calls) = self.waiting.get_mut(&group) {
            calls.push(call);
        } else {
            self.waiting.insert(group.clone(), Vec::new());
            self.begin(group, vec![call]);
        }
    }

    fn begin_next(&mut self, group: String) {
        let calls = self.waiting.get_mut(&group).map(std::mem::take).unwrap_or_default();
        if calls.is_empty() {
            self.waiting.remove(&group);
        } else {
            self.begin(group, calls);
        }
    }

    fn begin(&self, group: String, calls: Vec<Call>) {
        let (pool, notifiers) = (self.pool.clone(), self.notifiers.clone());
        let transactions = Arc::clone(&self.transactions);
        self.busy.push(Box::pin(async move {
            // Never closed.
            let permit = transactions.acquire_owned().await;
            answer(&pool, &notifiers, &group, calls).await;
            drop(permit);
            tokio::time::sleep(GATHERED_FOR).await;
            group
        }));
    }
}

async fn answer(pool: &PgPool, notifiers: &Notifiers, group: &str, calls: Vec<Call>) {
    let (events, replies): (Vec<Event>, Vec<_>) = calls.into_iter().map(|call| (call.event, call.reply)).unzip();
    let stepped = tokio::time::timeout(TRANSACTION_MAX, take_step(pool, notifiers, group, &events)).await;
    let stepped = stepped.unwrap_or(Err(OpError::Unavailable));
    for (event, reply) in events.iter().zip(replies) {
        let answer = match &stepped {
            Ok((state, now)) => shown(group, state, *now, event),
            Err(error) => Err(error.clone()),
        };
        // The caller may be gone.
        drop(reply.send(answer));
    }
}

fn shown(name: &str, state: &State, now: DateTime<Utc>, event: &Event) -> Result<Ticked, OpError> {
    let share = match event {
        Event::Leave { .. } => None,
        Event::Tick { member, .. } => Some(state.share(member).ok_or_else(|| {
            OpError::Conflict(format!(
                "partition group {name:?} has {MEMBERS_MAX} members, which is the limit: use several groups"
            ))
        })?),
    };
    let share = share.map(perhaps_first);
    Ok(Ticked { share, group: state.group.clone(), now })
}

#[cfg(feature = "test-util")]
fn perhaps_first(share: Share) -> Share {
    use tenure_store::breakage::{Breakage, is_on};
    Share { index: share.index.map(|index| if is_on(Breakage::ShareOverlap) { 0 } else { index }), ..share }
}

#[cfg(not(feature = "test-util"))]
fn perhaps_first(share: Share) -> Share {
    share
}

/// Applies the calls in one transaction.
async fn take_step(
    pool: &PgPool,
    notifiers: &Notifiers,
    name: &str,
    events: &[Event],
) -> Result<(State, DateTime<Utc>), OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    session::idle_briefly(&mut transaction).await?;
    let stored = partitions::lock(&mut transaction, name).await?.ok_or_else(|| missing(name))?;
    let members = partitions::list_members(&mut *transaction, stored.id).await?;
    let before = State { group: stored.group, members };
    let mut state = before.clone();
    step(&mut state, events, stored.now);
    let is_moved = before.group.epoch != state.group.epoch || before.group.next != state.group.next;
    if state.group.epoch != before.group.epoch {
        partitions::lock_out_claims(&mut transaction, stored.id).await?;
    }
    if state != before {
        partitions::store(&mut transaction, stored.id, &before, &state).await?;
    }
    if is_moved {
        let Group { epoch, replicas, .. } = state.group;
        let note = Note::partitions_changed(name.to_owned(), epoch, state.overall(), replicas);
        policies::emit(&mut transaction, &note).await?;
    }
    notifiers.commit(transaction, Effects::default()).await?;
    if is_moved {
        tracing::info!(
            partition.name = name,
            partition.epoch = state.group.epoch,
            partition.state = state.overall().as_str(),
            partition.replicas = state.group.replicas,
            "partition group changed"
        );
    }
    Ok((state, stored.now))
}
