//! Idle workers with a session each. They renew it a third of its TTL after each renewal, or wait
//! in their inboxes, which also renews. Their first renewals are spread over that time.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;

const TTL: u64 = 120;
const PERIOD: Duration = Duration::from_secs(TTL / 3);
const WAIT: Duration = Duration::from_secs(30);

/// Attempts to start a refused session, and the pause between them.
const TRIES: u32 = 30;
const PAUSE: Duration = Duration::from_secs(2);

pub(crate) struct Sessions<const INBOX: bool> {
    session: String,
    next: Option<Instant>,
}

impl<const INBOX: bool> Mode for Sessions<INBOX> {
    const STEPS: &'static [&'static str] = if INBOX { &["inbox"] } else { &["renew"] };
    const COUNTS: &'static str = "renewals";

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        // A server cannot accept thousands of starts at once.
        let mut tries = 0;
        let session = loop {
            match lane.start_session(TTL).await {
                Err(BenchError::Refused { .. }) if tries < TRIES => sleep(PAUSE).await,
                started => break started?,
            }
            tries += 1;
        };
        Ok(Self { session, next: None })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let period = if INBOX { WAIT } else { PERIOD };
        let begin = self.next.unwrap_or_else(|| Instant::now() + period.mul_f64(lane.place()));
        sleep_until(begin).await;
        if INBOX {
            lane.read_inbox(0, &self.session, WAIT.as_secs()).await?;
            // The read of the inbox has waited already.
            self.next = Some(Instant::now());
        } else {
            lane.renew_session(0, &self.session).await?;
            self.next = Some(Instant::now().max(begin + PERIOD));
        }
        lane.count(1);
        Ok(0)
    }
}
