//! appendLiveLog: appends chunks of many logs in one statement, and turns finished logs into
//! artifacts.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{Connection as _, PgConnection, PgPool};
use tenure_api::live_log::{BACKING_LOG, LIVE_LOG, LIVE_LOG_KEPT_MAX};
use uuid::Uuid;

use super::OpError;
use super::create_artifact::{RunRef, event};
use crate::batch::{Operation, SMALL, Verdict};
use crate::notifiers::{Effects, Notifiers};
use tenure_domain::artifact::{self, Details};
use tenure_domain::live_log;
use tenure_store::live_logs::{self, Appended, Chunk};
use tenure_store::{artifacts, tasks};

/// Appends chunks. The answer is the offset after the log's last byte.
pub struct AppendLog;

/// Gathering time of a chunk: workers send one a second, and readers get it within two.
const GATHER: Duration = Duration::from_millis(50);

impl Operation for AppendLog {
    type Member = (RunRef, Chunk);
    type Answer = Appended;
    const NAME: &'static str = "append_live_log";
    const WAITING_MAX: usize = 4_000;
    /// Safe to repeat: stored bytes are not stored twice. Needs no permit: the tables are unlogged,
    /// so a commit waits for no flush.
    const READ_ONLY: bool = true;
    type Decoded = ();

    fn gather(_: &Self::Member) -> Duration {
        GATHER
    }

    fn weight((_, chunk): &Self::Member) -> usize {
        chunk.bytes.len() + SMALL
    }

    /// One chunk per log and batch: the second begins where the first ends.
    fn task((_, chunk): &Self::Member) -> Option<Uuid> {
        Some(chunk.task)
    }

    async fn run(
        &self,
        conn: &mut PgConnection,
        members: &[&Self::Member],
        _: &mut Effects,
    ) -> Result<Vec<Verdict<Appended>>, sqlx::Error> {
        let chunks: Vec<Chunk> = members.iter().map(|(_, chunk)| chunk.clone()).collect();
        let kept_max = i64::try_from(LIVE_LOG_KEPT_MAX).unwrap_or(i64::MAX);
        let stored = live_logs::append(conn, &chunks, kept_max).await?;
        let stored: HashMap<usize, Option<Appended>> = stored.into_iter().collect();
        let left: Vec<Uuid> =
            chunks.iter().enumerate().filter(|(n, _)| !stored.contains_key(n)).map(|(_, c)| c.task).collect();
        let known = if left.is_empty() { HashMap::default() } else { tasks::load(conn, &left).await? };
        let verdict = |(n, (of, chunk)): (usize, &&Self::Member)| match stored.get(&n) {
            Some(Some(appended)) => Verdict::Done(*appended),
            // A repeat of the worker's unanswered first chunk, stored by another server just now.
            Some(None) => Verdict::Locked,
            None => Verdict::Refused(why_not(*of, known.contains_key(&chunk.task))),
        };
        Ok(members.iter().enumerate().map(verdict).collect())
    }
}

fn why_not(RunRef { task, run }: RunRef, task_exists: bool) -> OpError {
    if task_exists {
        OpError::Conflict(format!("run {run} of task {task} is not claimed; only its worker writes its log"))
    } else {
        OpError::NotFound(format!("task {task} does not exist"))
    }
}

/// Creates the artifacts of a stored log. False if none has its bytes: the task is gone, or another
/// artifact has the log's name, such as an unfinished upload.
pub async fn make_artifacts(pool: &PgPool, notifiers: &Notifiers, of: RunRef) -> Result<bool, OpError> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    tasks::lock(&mut transaction, of.task.uuid()).await?;
    let loaded = tasks::load(&mut transaction, &[of.task.uuid()]).await?.remove(&of.task.uuid());
    let Some(loaded) = loaded else { return Ok(false) };
    let (task, now) = (loaded.task, loaded.now);
    let backing = artifacts::find(&mut transaction, task.seq, of.run, BACKING_LOG).await?;
    let live = artifacts::find(&mut transaction, task.seq, of.run, LIVE_LOG).await?;
    let made = live_log::artifacts(backing.as_ref(), live.as_ref(), task.expires, now);
    // The bytes of an artifact under removal may already be listed for deletion.
    let has_bytes = backing.is_some_and(|old| old.artifact.details == Details::S3 && old.removable > now)
        || made.iter().any(|new| new.artifact.name == BACKING_LOG);
    for stored in made {
        let is_emitted = artifact::is_emitted_at_creation(stored.artifact.details.storage_type());
        let event = is_emitted.then(|| event(&task, &stored.artifact)).transpose()?;
        artifacts::put(&mut transaction, task.seq, of.run, &stored, event.as_ref()).await?;
    }
    notifiers.commit(transaction, Effects::default()).await?;
    Ok(has_bytes)
}
