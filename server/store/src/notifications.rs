//! The channel by which servers wake each other.

use sqlx::PgPool;
use tenure_api::ids::TaskId;
use uuid::Uuid;

use super::worker_removals::Gone;

/// The channel's name.
pub const CHANNEL: &str = "tenure_bell";
/// What a session is for that listens.
pub const LISTENER: &str = "listener";

/// The first word of a payload about a worker that stops.
const LEAVING: &str = "leaving";
/// The first word of a payload about runs that were taken away from their workers. Servers of other releases find no queues in it.
const TAKEN_AWAY: &str = "taken-away";
/// What such a payload says in the place of more tasks than this: its length is limited to 8,000 bytes.
const MANY: &str = "many";
const TAKEN_AWAY_MAX: usize = 300;

/// Whether a server besides this one listens.
pub async fn other_listeners(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"-- other_listeners
        SELECT count(*) > 1 AS "others!" FROM pg_stat_activity
        -- Servers of other releases listen too.
        WHERE datname = current_database() AND application_name LIKE 'tenure/% ' || $1"#,
        LISTENER
    )
    .fetch_one(pool)
    .await
}

/// Rings for these queues.
pub async fn notify(pool: &PgPool, from: Uuid, queues: &[i32]) -> Result<(), sqlx::Error> {
    let mut payload = from.to_string();
    for queue in queues {
        payload.push(',');
        payload.push_str(&queue.to_string());
    }
    sqlx::query!("-- notify\nSELECT pg_notify($1, $2)", CHANNEL, payload).execute(pool).await?;
    Ok(())
}

/// Tells every server that a worker stops: what waits for work in its name is to end.
pub async fn notify_leaving(pool: &PgPool, worker: &Gone) -> Result<(), sqlx::Error> {
    let Gone { queue, worker_group, worker_id } = worker;
    // The parts of a worker's name have no spaces.
    let payload = format!("{LEAVING} {queue} {worker_group} {worker_id}");
    sqlx::query!("-- notify_leaving\nSELECT pg_notify($1, $2)", CHANNEL, payload).execute(pool).await?;
    Ok(())
}

/// Tells every server that runs of these tasks were taken away from their workers; of more than `TAKEN_AWAY_MAX` only that there
/// were many.
pub async fn notify_taken_away(pool: &PgPool, from: Uuid, tasks: &[Uuid]) -> Result<(), sqlx::Error> {
    let payload = taken_away(from, tasks);
    sqlx::query!("-- notify_taken_away\nSELECT pg_notify($1, $2)", CHANNEL, payload).execute(pool).await?;
    Ok(())
}

fn taken_away(from: Uuid, tasks: &[Uuid]) -> String {
    let ids = tasks.iter().filter_map(|task| TaskId::from_uuid(*task)).map(|id| id.to_string());
    let named = if tasks.len() > TAKEN_AWAY_MAX { MANY.to_owned() } else { ids.collect::<Vec<_>>().join(",") };
    format!("{TAKEN_AWAY} {from} {named}")
}

/// What another server has taken away from workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenAway {
    /// Runs of these tasks.
    Of(Vec<Uuid>),
    /// So many that they are not named.
    Many,
}

/// Which server has taken something away, if a payload is about that, and what.
#[must_use]
pub fn read_taken_away(payload: &str) -> Option<(Uuid, TakenAway)> {
    let (from, named) = payload.strip_prefix(TAKEN_AWAY)?.strip_prefix(' ')?.split_once(' ')?;
    let tasks = || named.split(',').filter_map(|id| id.parse().ok()).map(TaskId::uuid).collect();
    Some((from.parse().ok()?, if named == MANY { TakenAway::Many } else { TakenAway::Of(tasks()) }))
}

/// The worker that stops, if a payload names one.
#[must_use]
pub fn read_leaving(payload: &str) -> Option<Gone> {
    let mut words = payload.strip_prefix(LEAVING)?.strip_prefix(' ')?.split(' ');
    let (queue, worker_group, worker_id) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    Some(Gone { queue, worker_group: worker_group.to_owned(), worker_id: worker_id.to_owned() })
}

/// Who rang, and for which queues.
#[must_use]
pub fn read(payload: &str) -> (Option<Uuid>, Vec<i32>) {
    let mut parts = payload.split(',');
    let from = parts.next().and_then(|text| text.parse().ok());
    (from, parts.filter_map(|text| text.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_hundred_tasks_fit_and_more_are_many() {
        let from = Uuid::new_v4();
        let tasks: Vec<Uuid> = (0..=TAKEN_AWAY_MAX).map(|_| Uuid::new_v4()).collect();
        for tasks in [&tasks[..1], &tasks[1..]] {
            let payload = taken_away(from, tasks);
            assert!(payload.len() < 8_000, "{}", payload.len());
            assert_eq!(read_taken_away(&payload), Some((from, TakenAway::Of(tasks.to_vec()))));
            assert_eq!(read(&payload), (None, Vec::new()), "a server of another release");
        }
        let many = taken_away(from, &tasks);
        assert_eq!(read_taken_away(&many), Some((from, TakenAway::Many)));
        assert_eq!((read_taken_away(&format!("{from},1")), read_leaving(&many)), (None, None));
    }
}
