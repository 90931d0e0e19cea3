//! Gets messages that were put before, one or as many as one request may, and leaves them hidden.
//! The run ends with the last message.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;
use crate::messages::{QueueUrls, get};

/// Pause after an empty get: the last messages are on their way to other lanes.
const REST: Duration = Duration::from_millis(1);

pub(crate) struct Get<const LIMIT: u8> {
    urls: QueueUrls,
}

impl<const LIMIT: u8> Mode for Get<LIMIT> {
    const STEPS: &'static [&'static str] = &["get"];
    const COUNTS: &'static str = "messages";
    const ON_AZURE: bool = true;

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self { urls: lane.lowest_queue().await? })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let began = Instant::now();
        let got = get(lane.client(), &self.urls, LIMIT).await?;
        if got.is_empty() {
            lane.note_empty();
            sleep(REST).await;
            return Ok(0);
        }
        lane.record(0, began, Instant::now());
        let messages = got.len() as u64;
        lane.count(messages);
        lane.run().note_claimed(messages);
        Ok(0)
    }
}
