//! Calls of a worker with a session.

use tenure_api::credentials::Credentials;
use tenure_api::ids::TaskId;
use tenure_api::sessions::{Inbox, InboxEvent, SessionStarted};
use tenure_driver::http::{Client, QUEUE_API, TENURE_API};

use super::{Claim, Lane, parse};
use crate::BenchError;

/// Seconds of a wait in an inbox.
const INBOX_WAIT: u64 = 20;

#[derive(Debug)]
pub(crate) struct Assigned {
    task: TaskId,
    run: u16,
}

impl Assigned {
    pub(crate) fn is_of(&self, task: TaskId) -> bool {
        self.task == task
    }
}

impl Lane {
    /// Starts a session of the lane's worker with this TTL in seconds; returns its path.
    pub(crate) async fn start_session(&mut self, ttl: u64) -> Result<String, BenchError> {
        let (queue, worker) = (&self.queue, &self.worker);
        let body = format!(
            r#"{{"taskQueueId":"{queue}","workerGroup":"bench","workerId":"{worker}","ttl":{ttl},"takeover":true}}"#
        );
        let path = format!("{TENURE_API}/sessions");
        let answer = self.call(None, "startSession", None, "POST", &path, Some(body.as_bytes())).await?;
        let started: SessionStarted = parse("startSession", &answer)?;
        Ok(format!("{path}/{}", started.session_id))
    }

    pub(crate) async fn renew_session(&mut self, step: usize, session: &str) -> Result<(), BenchError> {
        self.call(Some(step), "renewSession", None, "POST", &format!("{session}/renew"), None).await?;
        Ok(())
    }

    pub(crate) async fn read_inbox(&mut self, step: usize, session: &str, wait: u64) -> Result<(), BenchError> {
        self.call(Some(step), "sessionInbox", None, "GET", &format!("{session}/inbox?wait={wait}"), None).await?;
        Ok(())
    }

    /// Waits until runs are assigned to the session after the item `after`; returns the last item
    /// and the runs.
    pub(crate) async fn read_assigned(
        client: &mut Client,
        credentials: &Credentials,
        session: &str,
        after: i64,
    ) -> Result<(i64, Vec<Assigned>), BenchError> {
        let path = format!("{session}/inbox?wait={INBOX_WAIT}&after={after}");
        client.start(credentials, "GET", &path, None).await?;
        let reply = client.finish().await?;
        let inbox: Inbox = parse("sessionInbox", &reply.body)?;
        let last = inbox.items.iter().map(|item| item.id).max().unwrap_or(after);
        let assigned = inbox.items.into_iter().filter_map(|item| {
            let InboxEvent::Assigned { task_id, run_id, .. } = item.what else { return None };
            Some(Assigned { task: task_id, run: run_id.number() })
        });
        Ok((last, assigned.collect()))
    }

    pub(crate) async fn accept(&mut self, step: usize, session: &str, run: &Assigned) -> Result<Claim, BenchError> {
        let id = session.rsplit('/').next().unwrap_or_default();
        let body = format!(r#"{{"workerGroup":"bench","workerId":"{}","sessionId":"{id}"}}"#, self.worker);
        let path = format!("{QUEUE_API}/task/{}/runs/{}/claim", run.task, run.run);
        let answer = self.call(Some(step), "claimTask", None, "POST", &path, Some(body.as_bytes())).await?;
        parse("claimTask", &answer)
    }
}
