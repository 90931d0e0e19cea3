//! Measures the time from the start of a create (on Azure: of a put) until a poller on another
//! connection has the message. The poller polls in a tight loop and never pauses, so a create
//! begins at any time of a poll. Each lane has its own queue and poller. The message is deleted
//! before the next turn.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Mode;
use crate::BenchError;
use crate::lane::Lane;
use crate::messages::{Message, QueueUrls, delete, get};

type Delivery = Result<(Message, Instant), BenchError>;

pub(crate) struct PutToVisible {
    urls: QueueUrls,
    deliveries: UnboundedReceiver<Delivery>,
    _poller: JoinSet<()>,
}

impl Mode for PutToVisible {
    const STEPS: &'static [&'static str] = &["visible"];
    const COUNTS: &'static str = "messages";
    const ON_AZURE: bool = true;

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError> {
        lane.use_queue_of_its_own();
        let urls = lane.lowest_queue().await?;
        let mut client = lane.another_client()?;
        let (sender, deliveries) = unbounded_channel();
        let mut poller = JoinSet::new();
        let polled = urls.clone();
        poller.spawn_local(async move {
            loop {
                let got = get(&mut client, &polled, 1).await;
                let now = Instant::now();
                let news: Vec<Delivery> = match got {
                    Ok(messages) => messages.into_iter().map(|message| Ok((message, now))).collect(),
                    Err(error) => vec![Err(error)],
                };
                if news.into_iter().any(|news| sender.send(news).is_err()) {
                    return;
                }
            }
        });
        Ok(Self { urls, deliveries, _poller: poller })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        let began = Instant::now();
        let text = lane.put().await?;
        loop {
            let ended = || BenchError::Generator("the poller has ended".to_owned());
            let (message, seen) = self.deliveries.recv().await.ok_or_else(ended)??;
            delete(lane.client(), &self.urls, &message).await?;
            // The message of a failed turn is only deleted.
            if message.text == text {
                lane.record(0, began, seen);
                return Ok(1);
            }
        }
    }
}
