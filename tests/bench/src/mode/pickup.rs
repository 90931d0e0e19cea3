//! Measures the time from the start of a create until a waiting worker has the task. Each lane has
//! its own queue and worker, so that the measured worker gets the task.

use std::time::Duration;

use tenure_api::credentials::Credentials;
use tokio::time::{Instant, sleep};

use super::Mode;
use crate::BenchError;
use crate::lane::{Lane, read_claims};
use tenure_driver::http::Client;

const PICKUP: usize = 0;
const CREATE: usize = 1;
const REPORT: usize = 2;
/// Least time by which the worker's request precedes the create. A client cannot see that it is in
/// the wait list.
const HEAD_START: Duration = Duration::from_millis(10);
/// Additional random time, in milliseconds: otherwise lanes answered by one tick would create
/// together.
const SPREAD_MS: u64 = 40;

const LEFT: u8 = 32;

pub(crate) struct Pickup {
    worker: Client,
    credentials: Credentials,
}

impl Mode for Pickup {
    const STEPS: &'static [&'static str] = &["pickup", "create", "report"];

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        lane.use_queue_of_its_own();
        Ok(Self { worker: lane.another_client()?, credentials: lane.root()? })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let (path, body) = lane.claim_request(1);
        self.worker.start(&self.credentials, "POST", &path, Some(body.as_bytes())).await?;
        sleep(HEAD_START + Duration::from_millis(lane.random().below(SPREAD_MS))).await;
        let began = Instant::now();
        let picked_up = async {
            let reply = self.worker.finish().await;
            (reply, Instant::now())
        };
        let (created, (reply, ended)) = tokio::join!(lane.create(CREATE), picked_up);
        let task = created?;
        let mut claims = read_claims(&reply?.body)?;
        if claims.iter().any(|claim| claim.is_of(task)) {
            lane.record(PICKUP, began, ended);
        } else {
            // A failed turn left tasks that were available at once. They are only cleared away,
            // with this turn's task: otherwise each later turn would find the task of the turn
            // before.
            let (path, body) = lane.claim_request(LEFT);
            let reply = self.worker.exchange(&self.credentials, "POST", &path, Some(body.as_bytes())).await?;
            claims.extend(read_claims(&reply.body)?);
        }
        for claim in &claims {
            lane.complete(REPORT, claim).await?;
        }
        Ok(claims.len() as u64)
    }
}
