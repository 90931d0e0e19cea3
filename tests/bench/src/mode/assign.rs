//! Measures the time from the start of a create until the assigned worker gets the task in its
//! inbox. Each lane has its own queue and worker, so that the measured worker gets the task.

use std::time::Duration;

use tenure_api::credentials::Credentials;
use tenure_driver::http::Client;
use tokio::time::{Instant, sleep};

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

const ASSIGNED: usize = 0;
const CREATE: usize = 1;
const ACCEPT: usize = 2;
const REPORT: usize = 3;
/// Session TTL in seconds; each turn renews.
const TTL: u64 = 3_600;
/// Time by which the worker's request precedes the create. A client cannot see that it waits.
const HEAD_START: Duration = Duration::from_millis(10);

pub(crate) struct Assign {
    worker: Client,
    credentials: Credentials,
    session: String,
    read: i64,
}

impl Mode for Assign {
    const STEPS: &'static [&'static str] = &["assigned", "create", "accept", "report"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        lane.use_queue_of_its_own();
        lane.put_policy(r#"{"dispatch":"assign"}"#).await?;
        let session = lane.start_session(TTL).await?;
        Ok(Self { worker: lane.another_client()?, credentials: lane.root()?, session, read: 0 })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let inbox = async {
            let read = Lane::read_assigned(&mut self.worker, &self.credentials, &self.session, self.read).await;
            (read, Instant::now())
        };
        let create = async {
            sleep(HEAD_START).await;
            let began = Instant::now();
            (lane.create(CREATE).await, began)
        };
        let ((created, began), (read, ended)) = tokio::join!(create, inbox);
        let task = created?;
        let (last, mut assigned) = read?;
        self.read = last;
        if assigned.iter().any(|run| run.is_of(task)) {
            lane.record(ASSIGNED, began, ended);
        } else {
            // A failed turn left tasks that were available at once. They are only cleared away,
            // with this turn's task: otherwise each later turn would find the task of the turn
            // before.
            let more = Lane::read_assigned(&mut self.worker, &self.credentials, &self.session, self.read).await?;
            self.read = more.0;
            assigned.extend(more.1);
        }
        for run in &assigned {
            let claim = lane.accept(ACCEPT, &self.session, run).await?;
            lane.complete(REPORT, &claim).await?;
        }
        Ok(assigned.len() as u64)
    }
}
