//! Results on their way to the queue. What has ended while the worker is busy goes with its next call for work, in one
//! request; what ends while a call for work waits is reported by itself, at once.

use std::collections::VecDeque;

use tenure_client::{Error, RunResult, TaskStatus};
use tokio::sync::{mpsc, oneshot};

use super::source::Source;

/// What the queue answers to a result.
pub(super) type Answer = Result<TaskStatus, Error>;

/// Where the handlers of tasks leave their results.
#[derive(Clone)]
pub(super) struct Results(mpsc::UnboundedSender<Ended>);

/// What has ended: dropped, it is reported by itself.
pub(super) struct Ended {
    pub result: RunResult,
    answer: oneshot::Sender<Answer>,
}

/// What has ended and is not on its way yet.
pub(super) struct Waiting {
    arriving: mpsc::UnboundedReceiver<Ended>,
    arrived: VecDeque<Ended>,
}

pub(super) fn channel() -> (Results, Waiting) {
    let (results, arriving) = mpsc::unbounded_channel();
    (Results(results), Waiting { arriving, arrived: VecDeque::new() })
}

impl Results {
    /// Leaves a result to the next call for work; the queue's answer, or none if it is to be reported by itself.
    pub(super) async fn send(&self, result: RunResult) -> Option<Answer> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Ended { result, answer }).ok()?;
        answered.await.ok()
    }
}

impl Ended {
    pub(super) fn answer(self, answer: Answer) {
        // A handler whose lease is over does not wait any more.
        drop(self.answer.send(answer));
    }
}

impl Waiting {
    async fn arrival(&mut self) {
        if let Some(ended) = self.arriving.recv().await {
            self.arrived.push_back(ended);
        } else {
            // The worker itself holds a sender.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for one that this source takes.
    pub(super) async fn arrival_for(&mut self, source: &Source) {
        if source.takes_results() {
            self.arrival().await;
        } else {
            self.refuse().await;
        }
    }

    /// What is there, up to so many.
    pub(super) fn take(&mut self, most: usize) -> Vec<Ended> {
        while let Ok(ended) = self.arriving.try_recv() {
            self.arrived.push_back(ended);
        }
        let most = most.min(self.arrived.len());
        self.arrived.drain(..most).collect()
    }

    /// From now on each is reported by itself as it comes. Never returns.
    pub(super) async fn refuse(&mut self) {
        loop {
            self.arrived.clear();
            self.arrival().await;
        }
    }
}
