//! The poll API: getting, deleting and hiding messages. What a message is, and who may change it, stands in
//! `domain::message`; claiming its run is claimTask's business.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use tenure_api::ids::TaskQueueId;
use uuid::Uuid;

use crate::batch::low_water_marks::LowWaterMarks;
use crate::batch::{Operation, Verdict};
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::message::{DEQUEUES_ALARMING, MessageId, QueueName, Receipt, Refusal, check};
use tenure_store::hot::messages::{self as hot, Deletion, Got, Want};
use tenure_store::messages;

/// What a message counts for against a batch's bytes, so that one statement hides a thousand at most.
const MESSAGE_WEIGHT: usize = 4 << 10;

/// Getting messages.
pub struct GetMessages {
    /// Where to start looking.
    pub low_water_marks: LowWaterMarks,
    /// How long claimWork leaves a run alone after its message was got.
    pub reservation: Duration,
}

/// A poller's request.
#[derive(Debug, Clone)]
pub struct GetRequest {
    /// Where it looks.
    pub queue: QueueName,
    /// What the queue is called, for the log.
    pub name: TaskQueueId,
    /// How many messages at most.
    pub count: u16,
    /// How long they are hidden from others.
    pub visibility: Duration,
}

/// What a poller gets.
#[derive(Debug, Default)]
pub struct Messages {
    /// The messages, oldest first.
    pub got: Vec<Got>,
    /// Whether the queue was seen to be empty. Without messages it may also be that somebody holds their rows just now.
    pub empty: bool,
}

impl Operation for GetMessages {
    type Member = GetRequest;
    type Answer = Messages;
    const NAME: &'static str = "get_messages";
    const WAITING_MAX: usize = 16_000;

    fn weight(member: &GetRequest) -> usize {
        usize::from(member.count) * MESSAGE_WEIGHT
    }

    fn task(_: &GetRequest) -> Option<Uuid> {
        None
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&GetRequest],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<Messages>>, sqlx::Error> {
        let mut slots: BTreeMap<(i32, i16), Vec<i32>> = BTreeMap::new();
        for (place, member) in (1..).zip(members) {
            let slots = slots.entry((member.queue.queue, member.queue.priority.code())).or_default();
            slots.extend(std::iter::repeat_n(place, usize::from(member.count)));
        }
        let wants: Vec<Want> =
            slots.into_iter().map(|((queue, priority), slots)| self.want(queue, priority, slots)).collect();
        let visibilities: Vec<Duration> = members.iter().map(|member| member.visibility).collect();
        let receipts: Vec<i64> = wants.iter().flat_map(|want| &want.slots).map(|_| random_receipt().0).collect();
        let mut found = hot::get(conn, &wants, &visibilities, &receipts, self.reservation).await?;
        found.got.sort_by_key(|got| got.ord);
        let locked: Vec<(i32, i16)> =
            found.locked.iter().map(|&want| (wants[want].queue, wants[want].priority)).collect();
        let mut answers: Vec<Messages> = members
            .iter()
            .map(|member| {
                let queue = (member.queue.queue, member.queue.priority.code());
                Messages { got: Vec::new(), empty: !locked.contains(&queue) }
            })
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

    async fn wait(&self, _: &mut PgConnection, _: &GetRequest) -> Result<(), sqlx::Error> {
        // No verdict is ever "locked": a locked message is somebody else's.
        Ok(())
    }
}

impl GetMessages {
    fn want(&self, queue: i32, priority: i16, slots: Vec<i32>) -> Want {
        let known = self.low_water_marks.get(queue);
        let mark = usize::try_from(priority).ok().and_then(|place| known.marks.get(place)).copied().unwrap_or_default();
        Want { queue, priority, generation: known.generation, mark, slots }
    }
}

/// Said once for a message: whoever gets it does not get done with it.
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
        "a message was got again and again, and its run was never claimed"
    );
}

/// A receipt that nobody can guess.
#[must_use]
pub fn random_receipt() -> Receipt {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    Receipt((high ^ low).cast_signed())
}

/// Deleting messages.
pub struct DeleteMessages {
    /// When the next message of a run is visible whose message was deleted too early.
    pub visibility: Duration,
}

/// What to delete, and the receipt for it.
#[derive(Debug, Clone, Copy)]
pub struct DeleteRequest {
    /// The queue that the URL is for.
    pub queue: QueueName,
    /// The message.
    pub message: MessageId,
    /// Shown by the caller.
    pub receipt: Receipt,
}

/// What a deletion answers: the refusal is an answer too, because it has no words yet.
pub type Deleted = Result<(), Refusal>;

impl Operation for DeleteMessages {
    type Member = DeleteRequest;
    type Answer = Deleted;
    const NAME: &'static str = "delete_messages";
    const WAITING_MAX: usize = 16_000;

    fn weight(_: &DeleteRequest) -> usize {
        size_of::<DeleteRequest>()
    }

    fn task(member: &DeleteRequest) -> Option<Uuid> {
        // Two generations of one run's message are one row.
        Some(MessageId { message: 0, ..member.message }.to_uuid())
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&DeleteRequest],
        effects: &mut Effects,
    ) -> Result<Vec<Verdict<Deleted>>, sqlx::Error> {
        let batch: Vec<Deletion> = members
            .iter()
            .map(|member| Deletion {
                queue: member.queue.queue,
                priority: member.queue.priority.code(),
                message: member.message,
                receipt: member.receipt,
            })
            .collect();
        let outcomes = hot::delete(conn, &batch, self.visibility).await?;
        // No outcome, no change: the caller finds out by trying again.
        let mut verdicts: Vec<Verdict<Deleted>> = members.iter().map(|_| Verdict::Locked).collect();
        for outcome in outcomes {
            let member = members[outcome.member];
            verdicts[outcome.member] = match check(outcome.known, member.receipt) {
                _ if outcome.deleted => {
                    effects.claimable.push(member.queue.queue);
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

/// Hides a message for another time, or shows it at once; answers the new receipt and when the message is visible.
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
    // What matches now was hidden from the statement by a change in between.
    Ok(Err(check(known, receipt).err().unwrap_or(Refusal::ReceiptNotCurrent)))
}
