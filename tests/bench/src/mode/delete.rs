//! Deletes messages with their receipts; puts and gets are not measured. On Tenure their runs are
//! pending, the most expensive case: the server creates a new message for a run whose message was
//! deleted. A worker usually claims first, and then the delete finds nothing.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;
use crate::messages::{Message, QueueUrls, delete, get};

const LIMIT: u8 = 32;
/// Pause of a lane after an empty get while it waits for its share.
const REST: Duration = Duration::from_millis(1);

pub(crate) struct Delete {
    urls: QueueUrls,
    messages: Vec<Message>,
}

impl Mode for Delete {
    const STEPS: &'static [&'static str] = &["delete"];
    const COUNTS: &'static str = "messages";
    const ON_AZURE: bool = true;

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        let urls = lane.lowest_queue().await?;
        let share = lane.run().share();
        let mut messages = Vec::with_capacity(share);
        while messages.len() < share {
            let missing = u8::try_from(share - messages.len()).unwrap_or(LIMIT).min(LIMIT);
            let got = get(lane.client(), &urls, missing).await?;
            if got.is_empty() {
                sleep(REST).await;
            }
            messages.extend(got);
        }
        Ok(Self { urls, messages })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let Some(message) = self.messages.pop() else {
            // The run ends with the first idle lane: fewer lanes would be another measurement.
            lane.run().note_dry();
            return Ok(0);
        };
        let began = Instant::now();
        delete(lane.client(), &self.urls, &message).await?;
        lane.record(0, began, Instant::now());
        Ok(1)
    }
}
