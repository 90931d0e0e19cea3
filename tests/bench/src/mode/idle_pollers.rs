//! Idle pollers: each polls the seven empty queues of its task queue once a second, highest
//! priority first, as a worker does. Their starts are spread over one second.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;
use crate::messages::{QueueUrls, get};

const PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct IdlePollers {
    queues: Vec<QueueUrls>,
    next: Option<Instant>,
}

impl Mode for IdlePollers {
    const STEPS: &'static [&'static str] = &["poll"];
    const COUNTS: &'static str = "polls";
    const ON_AZURE: bool = true;

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        lane.share_task_queues();
        Ok(Self { queues: lane.queues().await?, next: None })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let begin = self.next.unwrap_or_else(|| Instant::now() + PERIOD.mul_f64(lane.place()));
        sleep_until(begin).await;
        // A late poller does not poll twice to catch up.
        self.next = Some(Instant::now().max(begin + PERIOD));
        for queue in &self.queues {
            let began = Instant::now();
            let got = get(lane.client(), queue, 1).await?;
            if !got.is_empty() {
                let reason = "a message in a queue into which none was put".to_owned();
                return Err(BenchError::Answer { what: "get messages", reason });
            }
            lane.record(0, began, Instant::now());
            lane.count(1);
        }
        Ok(0)
    }
}
