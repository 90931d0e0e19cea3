//! The poll API: getting, deleting and hiding messages. The rules are in `domain::message`;
//! claimTask claims a message's run.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use tenure_api::ids::TaskQueueId;
use uuid::Uuid;

use crate::batch::low_water_marks::LowWaterMarks;
use crate::batch::tick::Kind;
use crate::batch::{Operation, Verdict};
use crate::notifiers::{Effects, Notifiers};
use crate::route::Route;
use tenure_domain::message::{DEQUEUES_ALARMING, MessageId, QueueName, Receipt, Refusal, check};
use tenure_store::cached::Cached;
use tenure_store::hot::messages::{self as hot, Deletion, FoundMessages, Got, Outcome, Want};
use tenure_store::hot::statement::{Rows, Run, Statement};
use tenure_store::in_use::InUse;
use tenure_store::{messages, queues};

/// Weight of a message, chosen so that one statement hides at most a thousand.
const MESSAGE_WEIGHT: usize = 4 << 10;

pub struct GetMessages {
    pub low_water_marks: LowWaterMarks,
    /// How long claimWork leaves a run alone after its message was got.
    pub reservation: Duration,
    pub polled: PolledQueues,
}

impl GetMessages {
    pub fn new(low_water_marks: &LowWaterMarks, reservation: Duration, polled: &PolledQueues) -> Self {
        Self { low_water_marks: low_water_marks.clone(), reservation, polled: polled.clone() }
    }
}

/// Queues stored as polled. claimWork looks for hidden messages only there.
pub type PolledQueues = Cached<InUse<i32, ()>>;

#[derive(Debug, Clone)]
pub struct GetRequest {
    pub queue: QueueName,
    /// For the log.
    pub name: TaskQueueId,
    /// Maximum number of messages.
    pub count: u16,
    /// How long the messages are hidden from others.
    pub visibility: Duration,
}

#[derive(Debug, Default)]
pub struct Messages {
    /// Oldest first.
    pub got: Vec<Got>,
    /// True if the queue was seen empty. If false without messages, the rows may be locked, or
    /// other pollers of the batch got some.
    pub empty: bool,
}

impl Operation for GetMessages {
    type Member = GetRequest;
    type Answer = Messages;
    const NAME: &'static str = "get_messages";
    const WAITING_MAX: usize = 16_000;
    const KIND: Option<Kind> = Some(Kind::GetMessages);
    type Decoded = FoundMessages;

    fn weight(member: &GetRequest) -> usize {
        usize::from(member.count) * MESSAGE_WEIGHT
    }

    fn task(_: &GetRequest) -> Option<Uuid> {
        None
    }

    fn route(member: &GetRequest) -> Route {
        // With the queue's claims, so that both take runs in order.
        Route::of_queue(member.queue.queue)
    }

    fn statement(&self, members: &[&GetRequest]) -> Option<Statement> {
        // The first poll of a queue is recorded beforehand, outside ticks.
        let noted = self.polled.read(|polled| members.iter().all(|of| polled.get(&of.queue.queue).is_some()));
        if !noted {
            return None;
        }
        let Wanted { wants, visibilities, receipts } = self.wanted(members);
        Some(hot::get_statement(&wants, &visibilities, &receipts, self.reservation))
    }

    fn decode(&self, _: &[&GetRequest], rows: &Rows, _: &mut Effects) -> Result<FoundMessages, sqlx::Error> {
        hot::decode_get(rows)
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&GetRequest],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<Messages>>, sqlx::Error> {
        self.note_polled(conn, members).await?;
        let Wanted { wants, visibilities, receipts } = self.wanted(members);
        let statement = hot::get_statement(&wants, &visibilities, &receipts, self.reservation);
        let rows = conn.run_one(&statement).await?;
        self.judge(conn, members, hot::decode_get(&rows)?).await
    }

    async fn judge(
        &self,
        _: &mut PgConnection,
        members: &[&GetRequest],
        mut found: FoundMessages,
    ) -> Result<Vec<Verdict<Messages>>, sqlx::Error> {
        found.got.sort_by_key(|got| got.ord);
        let queues: Vec<(i32, i16)> = slots(members).into_keys().collect();
        let queue = |member: &&GetRequest| (member.queue.queue, member.queue.priority.code());
        // Other rows of a queue that gave messages were not checked for locks.
        let gave = found.got.iter().filter_map(|got| members.get(usize::try_from(got.poller - 1).ok()?)).map(queue);
        let unsure: HashSet<(i32, i16)> = found.locked.iter().map(|&want| queues[want]).chain(gave).collect();
        let mut answers: Vec<Messages> = members
            .iter()
            .map(|member| Messages { got: Vec::new(), empty: !unsure.contains(&queue(member)) })
            .collect();
        metrics::counter!("tenure_messages_total", "what" => "got").increment(found.got.len() as u64);
        for got in found.got {
            let place = usize::try_from(got.poller - 1).map_err(|_| sqlx::Error::RowNotFound)?;
            let (Some(member), Some(answer)) = (members.get(place), answers.get_mut(place)) else {
                return Err(sqlx::Error::RowNotFound);
            };
            warn_of_alarming(&got, &member.name);
            answer.got.push(got);
        }
        Ok(answers.into_iter().map(Verdict::Done).collect())
    }
}

/// Pollers by queue and priority, from 1, repeated once per requested message.
fn slots(members: &[&GetRequest]) -> BTreeMap<(i32, i16), Vec<i32>> {
    let mut slots: BTreeMap<(i32, i16), Vec<i32>> = BTreeMap::new();
    for (place, member) in (1..).zip(members) {
        let slots = slots.entry((member.queue.queue, member.queue.priority.code())).or_default();
        slots.extend(std::iter::repeat_n(place, usize::from(member.count)));
    }
    slots
}

struct Wanted {
    wants: Vec<Want>,
    visibilities: Vec<Duration>,
    receipts: Vec<i64>,
}

impl GetMessages {
    async fn note_polled(&self, conn: &mut PgConnection, members: &[&GetRequest]) -> Result<(), sqlx::Error> {
        let since = self.polled.epoch();
        let new: Vec<i32> = self.polled.read(|polled| {
            members.iter().map(|member| member.queue.queue).filter(|queue| polled.get(queue).is_none()).collect()
        });
        if !new.is_empty() {
            queues::mark_polled(conn, &new).await?;
            self.polled.update(since, |polled| new.into_iter().for_each(|queue| polled.insert(queue, ())));
        }
        Ok(())
    }

    fn wanted(&self, members: &[&GetRequest]) -> Wanted {
        let slots = slots(members).into_iter();
        let wants: Vec<Want> = slots.map(|((queue, priority), slots)| self.want(queue, priority, slots)).collect();
        let visibilities = members.iter().map(|member| member.visibility).collect();
        let receipts = wants.iter().flat_map(|want| &want.slots).map(|_| random_receipt().0).collect();
        Wanted { wants, visibilities, receipts }
    }

    fn want(&self, queue: i32, priority: i16, slots: Vec<i32>) -> Want {
        let low_water_marks = self.low_water_marks.get(queue);
        let mark = usize::try_from(priority)
            .ok()
            .and_then(|place| low_water_marks.marks.get(place))
            .copied()
            .unwrap_or_default();
        Want { queue, priority, epoch: low_water_marks.epoch, mark, slots }
    }
}

/// Warns once per message whose pollers never claim its run.
fn warn_of_alarming(got: &Got, queue: &TaskQueueId) {
    if got.dequeued != DEQUEUES_ALARMING {
        return;
    }
    metrics::counter!("tenure_messages_total", "what" => "alarming").increment(1);
    let task = tenure_api::ids::SlugId::from_uuid(got.task).map(|id| id.to_string()).unwrap_or_default();
    tracing::warn!(
        task.id = task,
        run.id = got.message.run,
        queue.id = %queue,
        dequeue_count = got.dequeued,
        "a message was received many times and its run was never claimed; check its worker"
    );
}

/// Returns an unguessable receipt.
pub fn random_receipt() -> Receipt {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    Receipt((high ^ low).cast_signed())
}

/// If a message is deleted before its run is claimed, the run's next message appears after this
/// time.
pub struct DeleteMessages(pub Duration);

#[derive(Debug, Clone, Copy)]
pub struct DeleteRequest {
    /// The queue in the URL.
    pub queue: QueueName,
    pub message: MessageId,
    /// Presented by the caller.
    pub receipt: Receipt,
}

/// A refusal is an answer too: the poll API renders it.
pub type Deleted = Result<(), Refusal>;

impl Operation for DeleteMessages {
    type Member = DeleteRequest;
    type Answer = Deleted;
    const NAME: &'static str = "delete_messages";
    const WAITING_MAX: usize = 16_000;
    const KIND: Option<Kind> = Some(Kind::DeleteMessages);
    type Decoded = Vec<Outcome>;

    fn task(member: &DeleteRequest) -> Option<Uuid> {
        // All generations of one run's message share a row.
        Some(MessageId { message: 0, ..member.message }.to_uuid())
    }

    fn route(member: &DeleteRequest) -> Route {
        Route::of_queue(member.queue.queue)
    }

    fn statement(&self, members: &[&DeleteRequest]) -> Option<Statement> {
        Some(hot::delete_statement(&deletions(members), self.0))
    }

    fn decode(
        &self,
        members: &[&DeleteRequest],
        rows: &Rows,
        effects: &mut Effects,
    ) -> Result<Vec<Outcome>, sqlx::Error> {
        let outcomes = hot::decode_delete(rows)?;
        let deleted = outcomes.iter().filter(|outcome| outcome.deleted);
        effects.claimable.extend(deleted.map(|outcome| members[outcome.member].queue.queue));
        Ok(outcomes)
    }

    async fn judge(
        &self,
        _: &mut PgConnection,
        members: &[&DeleteRequest],
        outcomes: Vec<Outcome>,
    ) -> Result<Vec<Verdict<Deleted>>, sqlx::Error> {
        // Without an outcome nothing changed, and the member runs again.
        let mut verdicts: Vec<Verdict<Deleted>> = members.iter().map(|_| Verdict::Locked).collect();
        for outcome in outcomes {
            let member = members[outcome.member];
            verdicts[outcome.member] = match check(outcome.known, member.receipt) {
                _ if outcome.deleted => {
                    metrics::counter!("tenure_messages_total", "what" => "deleted_unclaimed").increment(1);
                    Verdict::Done(Ok(()))
                }
                Err(refusal) => Verdict::Done(Err(refusal)),
                Ok(()) => Verdict::Locked,
            };
        }
        Ok(verdicts)
    }

    async fn wait(&self, conn: &mut PgConnection, member: &DeleteRequest) -> Result<(), sqlx::Error> {
        messages::lock(conn, member.message).await
    }
}

fn deletions(members: &[&DeleteRequest]) -> Vec<Deletion> {
    let deletion = |member: &&DeleteRequest| Deletion {
        queue: member.queue.queue,
        priority: member.queue.priority.code(),
        message: member.message,
        receipt: member.receipt,
    };
    members.iter().map(deletion).collect()
}

/// Changes a message's visibility timeout, which may be zero. Returns the new receipt and when the
/// message is visible.
pub async fn update(
    pool: &PgPool,
    notifiers: &Notifiers,
    request: &DeleteRequest,
    visibility: Duration,
) -> Result<Result<(Receipt, DateTime<Utc>), Refusal>, sqlx::Error> {
    let DeleteRequest { queue, message, receipt } = *request;
    let (key, priority, next) = (queue.queue, queue.priority.code(), random_receipt());
    if let Some(visible) = messages::update(pool, key, priority, message, receipt, next, visibility).await? {
        metrics::counter!("tenure_messages_total", "what" => "updated").increment(1);
        if visibility.is_zero() {
            notifiers.apply(Effects::claimable([key]));
        }
        return Ok(Ok((next, visible)));
    }
    let known = messages::find(pool, key, priority, message).await?;
    // A receipt that matches now changed between the statements.
    Ok(Err(check(known, receipt).err().unwrap_or(Refusal::ReceiptNotCurrent)))
}
