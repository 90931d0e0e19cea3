//! Blocking path: runs members that cannot share a batch, one per transaction that waits for locks.

use std::sync::Arc;

use sqlx::{Connection, PgConnection};
use tokio::sync::{Mutex, mpsc};
use tokio_util::task::TaskTracker;

use super::{Job, Operation, Session, Verdict};
use crate::essential;
use crate::failure::{Failure, OpError};
use crate::notifiers::{Effects, Notifiers};
use tenure_store::connector::Connector;
use tenure_store::failure::was_created_meanwhile;

const SESSIONS: usize = 2;
/// Queue capacity, in members.
const WAITING_MAX: usize = 1_000;

pub struct BlockingPath<O: Operation> {
    queue: mpsc::Sender<Job<O>>,
}

impl<O: Operation> Clone for BlockingPath<O> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<O: Operation> BlockingPath<O> {
    /// Starts tasks that end once the path is dropped and all members are answered.
    pub fn start(operation: &Arc<O>, connector: &Connector, notifiers: &Notifiers, tasks: &TaskTracker) -> Self {
        let (queue, inbox) = mpsc::channel(WAITING_MAX);
        let inbox = Arc::new(Mutex::new(inbox));
        for _ in 0..SESSIONS {
            let session = Session::new(connector.clone());
            essential::spawn(tasks, work(Arc::clone(operation), Arc::clone(&inbox), session, notifiers.clone()));
        }
        Self { queue }
    }

    pub fn take(&self, jobs: Vec<Job<O>>) {
        for job in jobs {
            metrics::counter!("tenure_blocking_path_total", "operation" => O::NAME).increment(1);
            if let Err(refused) = self.queue.try_send(job) {
                refused.into_inner().answer(Err(OpError::Overloaded(O::NAME)));
            }
        }
    }
}

async fn work<O: Operation>(
    operation: Arc<O>,
    inbox: Arc<Mutex<mpsc::Receiver<Job<O>>>>,
    mut session: Session,
    notifiers: Notifiers,
) {
    loop {
        let Some(job) = inbox.lock().await.recv().await else { break };
        let member = &job.member;
        let mut effects = Effects::default();
        let mut result = session.run(async |conn| alone(&*operation, conn, member, &mut effects).await).await;
        // The lock holder committed after this statement's snapshot, e.g. another server created
        // the group. A new statement sees the change.
        let waited = match &result {
            Ok(verdict) => matches!(verdict, Verdict::Locked | Verdict::Again),
            Err(failure) => was_created_meanwhile(failure.error()),
        };
        if waited {
            result = session.run(async |conn| alone(&*operation, conn, member, &mut effects).await).await;
        }
        // After the commit, even if its answer was lost.
        if matches!(result, Ok(_) | Err(Failure::Lost(_))) {
            notifiers.apply(effects);
        }
        let answer = match result {
            Ok(Verdict::Done(answer)) => Ok(answer),
            Ok(Verdict::Refused(error)) => Err(error),
            // Another transaction locked the row between wait and statement, twice.
            Ok(Verdict::Locked | Verdict::Again) => Err(OpError::Unavailable),
            Err(failure @ Failure::Again(_)) => {
                metrics::counter!("tenure_blocking_path_timeouts_total", "operation" => O::NAME).increment(1);
                Err(failure.report(O::NAME))
            }
            Err(failure) => Err(failure.report(O::NAME)),
        };
        job.answer(answer);
    }
}

async fn alone<O: Operation>(
    operation: &O,
    conn: &mut PgConnection,
    member: &O::Member,
    effects: &mut Effects,
) -> Result<Verdict<O::Answer>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    operation.wait(&mut transaction, member).await?;
    let mut verdicts = operation.run(&mut transaction, &[member], effects).await?;
    transaction.commit().await?;
    Ok(verdicts.pop().unwrap_or(Verdict::Locked))
}
