//! Servers of a database, and schedulers of queues.

use serde_json::json;
use sqlx::{Connection, PgPool};
use tenure_api::ids::{ServerId, TaskQueueId};
use tenure_api::servers::{ListedServer, SchedulerReplaced, SchedulerTerm, Servers};
use tenure_api::states::SchedulerEnd;

use super::OpError;
use super::actor::Actor;
use crate::notifiers::{Effects, Notifiers};
use crate::schedulers::Schedulers;
use tenure_domain::audit::{Action, Entry};
use tenure_store::queues::{self, Queues};
use tenure_store::{schedulers, servers};

#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub pool: &'a PgPool,
    pub queues: &'a Queues,
    pub notifiers: &'a Notifiers,
    pub schedulers: &'a Schedulers,
}

/// Lists all stored servers with the queues that they schedule.
pub async fn list(parts: Parts<'_>) -> Result<Servers, OpError> {
    let mut conn = parts.pool.acquire().await?;
    let all = servers::list(&mut conn).await?;
    let scheduled = schedulers::list(&mut conn).await?;
    let mut listed = Vec::with_capacity(all.servers.len());
    for stored in all.servers {
        let mut queues = Vec::new();
        for one in scheduled.iter().filter(|one| one.active.server == Some(stored.server.id)) {
            queues.push(SchedulerTerm {
                task_queue_id: queues::parse_name(&one.name)?,
                term: one.active.term,
                since: one.since.unwrap_or(stored.started).into(),
            });
        }
        listed.push(ListedServer {
            server_id: ServerId::new(stored.server.id),
            name: stored.name,
            weight: stored.server.weight,
            started: stored.started.into(),
            beat: stored.server.beat.into(),
            live: stored.server.is_live(all.now),
            queues,
        });
    }
    Ok(Servers { servers: listed })
}

/// Ends the term of a queue's scheduler as if its server were lost. The live server of greatest
/// weight is next; it may be the same one.
///
/// # Errors
/// If the queue does not assign its runs.
pub async fn replace_scheduler(
    parts: Parts<'_>,
    actor: &Actor,
    queue: &TaskQueueId,
) -> Result<SchedulerReplaced, OpError> {
    let none = || OpError::Conflict(format!("queue {queue} does not assign its tasks, and has no scheduler"));
    let key = parts.queues.find_key(parts.pool, queue).await?.ok_or_else(none)?;
    let mut conn = parts.pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    let seen = schedulers::lock(&mut transaction, key).await?.ok_or_else(none)?.active;
    let to = parts.schedulers.elected(&servers::list(&mut transaction).await?, key);
    let term = schedulers::change(&mut transaction, seen, to, SchedulerEnd::Replaced).await?.ok_or_else(none)?;
    let server_id = to.map(ServerId::new);
    let entry = Entry::new(Action::ReplaceScheduler, queue, json!({"term": term, "serverId": server_id}));
    let recorded = actor.record(&mut transaction, entry).await?;
    parts.notifiers.commit(transaction, Effects::default()).await?;
    parts.notifiers.notify_schedulers();
    recorded.log();
    Ok(SchedulerReplaced { task_queue_id: queue.clone(), term, server_id })
}
