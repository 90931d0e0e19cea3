//! Calls for the work of a share of a queue: the source of a consumer.

use tenure_api::ids::TaskQueueId;
use tenure_api::partitions::PartitionClaim;

use super::source::{Found, Source};
use crate::claim::CLAIM_TIMEOUT;
use crate::partition::Member;
use crate::{Client, Error, WorkerName};

/// Joins a group and claims the runs of its share. A run is held until its job has ended, so that
/// its slot moves to another member only then.
pub(super) struct ClaimShare {
    client: Client,
    queue: TaskQueueId,
    name: WorkerName,
    group: String,
    member: Option<Member>,
    answered: bool,
}

impl ClaimShare {
    pub(super) fn new(client: Client, queue: TaskQueueId, name: WorkerName, group: String) -> Self {
        Self { client, queue, name, group, member: None, answered: false }
    }

    async fn find_of(&self, member: &Member, room: usize) -> Result<Vec<Found>, Error> {
        // Before the call begins, so that no change is missed.
        let changed = member.until_changed();
        let Some((share, claiming)) = member.begin_claim() else { return Ok(Vec::new()) };
        let claim = PartitionClaim { name: self.group.clone(), epoch: share.epoch, index: share.index };
        let call = self.client.claim_work_within(CLAIM_TIMEOUT, &self.queue, &self.name, room, Some(&claim));
        let answer = tokio::select! {
            answer = call => answer,
            // The server requeues the runs of an answer that nobody reads.
            () = changed => return Ok(Vec::new()),
        };
        match answer {
            Ok(claims) => Ok(claims
                .into_iter()
                .map(|claim| {
                    let hold = claiming.hold(claim.task_id());
                    Found::to_claim(std::future::ready(Ok(Some((claim, hold)))))
                })
                .collect()),
            Err(Error::Refused { status: 409, code, .. }) if code == "StalePartition" => {
                claiming.refresh();
                Ok(Vec::new())
            }
            // The server may wait longer. A backoff would only delay later tasks.
            Err(Error::Network(error)) if error.is_timeout() && !error.is_connect() => {
                warning!("no answer to the call for work in time; trying again");
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }
}

impl Source for ClaimShare {
    async fn find(&mut self, room: usize) -> Result<Vec<Found>, Error> {
        let member = match self.member.take() {
            Some(member) => member,
            None => Member::join(&self.client, &self.group).await?,
        };
        self.answered = true;
        // Put back even if this future is dropped at a shutdown.
        let member = self.member.insert(member);
        member.wait_for_share().await;
        let Some(member) = &self.member else { return Ok(Vec::new()) };
        self.find_of(member, room).await
    }

    /// After a success a refusal counts as temporary.
    fn is_refused(&self, error: &Error) -> bool {
        !self.answered && matches!(error, Error::Refused { status: 401 | 403 | 404, .. })
    }

    /// Leaves the group, so that others get the share at once.
    async fn close(&mut self) {
        if let Some(member) = self.member.take()
            && let Err(error) = member.leave().await
        {
            tracing::debug!(error = crate::error::chain(&error), "a partition group could not be left");
        }
    }
}
