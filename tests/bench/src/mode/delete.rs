//! Delete messages with their receipts; putting and getting them is not measured. On Tenure their runs are pending, which
//! is the dearest case: the server does not lose a run whose message is gone, it makes it a new message. The usual order
//! of a worker is to claim first, and then the delete finds nothing left to do.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;
use crate::messages::{Message, QueueUrls, delete, get};

/// The most that a get may ask for.
const LIMIT: u8 = 32;
/// How long a lane rests that got nothing while it still waits for its share.
const REST: Duration = Duration::from_millis(1);

/// What the lane has got and not yet deleted.
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
            // With fewer lanes it would be another measurement.
            lane.run().note_dry();
            return Ok(0);
        };
        let began = Instant::now();
        delete(lane.client(), &self.urls, &message).await?;
        lane.record(0, began, Instant::now());
        Ok(1)
    }
}
