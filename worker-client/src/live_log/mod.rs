//! The log of a run, readable while it runs. Only Tenure has live logs.
//!
//! [`Client::append_live_log`] stores a piece. A [`Sender`] sends a whole [`Log`]: new bytes once a
//! second, at most 64 KiB, without the middle of more. Errors do not affect the run: [`publish`]
//! uploads the whole log at its end.

mod sender;

use std::time::Duration;

use reqwest::Method;
use tenure_api::dates::Timestamp;
use tenure_api::ids::{RunId, TaskId};

pub use tenure_api::live_log::{BACKING_LOG, LIVE_LOG, LIVE_LOG_CHUNK_MAX, LOG_CONTENT_TYPE, LiveLogAppended};

pub use sender::{Chunk, LAST_PIECE_WITHIN, Log, Sender};

use crate::client::{Call, Own, TENURE_API, parameter};
use crate::{Client, Error, NewArtifact, Upload};

const CHUNK_CONTENT_TYPE: &str = "text/plain";
/// An append is one insertion, and the next follows a second later.
const APPENDED_WITHIN: Duration = Duration::from_secs(10);

impl Client {
    /// Appends up to [`LIVE_LOG_CHUNK_MAX`] bytes to the live log of a claimed run. `offset` counts
    /// in the whole log. A repeated piece is stored once; readers see a line in place of a gap.
    ///
    /// # Errors
    /// The run is not claimed (409), or the run or the call is unknown (404).
    ///
    /// ```no_run
    /// # async fn example(claim: &tenure_client::Claim) -> Result<(), tenure_client::Error> {
    /// let (task, run) = (claim.task_id(), claim.run_id());
    /// let first = claim.client().append_live_log(task, run, 0, b"begun\n").await?;
    /// claim.client().append_live_log(task, run, first.next, b"half of it is done\n").await?;
    /// # Ok(()) }
    /// ```
    pub async fn append_live_log(
        &self,
        task_id: TaskId,
        run_id: RunId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<LiveLogAppended, Error> {
        let call = Call {
            method: Method::PUT,
            path: path(task_id, run_id),
            body: Some(bytes.to_vec()),
            timeout: APPENDED_WITHIN,
            own: Own {
                api: Some(TENURE_API),
                query: Some(format!("offset={offset}")),
                content_type: Some(CHUNK_CONTENT_TYPE),
                ..Own::default()
            },
        };
        Ok(self.call(&call).await?.value)
    }

    /// Creates the artifact that leads readers to the live log.
    pub(crate) async fn refer_to_live_log(
        &self,
        task_id: TaskId,
        run_id: RunId,
        expires: Timestamp,
    ) -> Result<(), Error> {
        let url = format!("{}{TENURE_API}{}?follow=1", self.root_url(), path(task_id, run_id));
        let reference = NewArtifact::Reference { url, content_type: LOG_CONTENT_TYPE.to_owned(), expires };
        self.create_artifact(task_id, run_id, LIVE_LOG, &reference).await.map(|_none| ())
    }
}

/// Uploads the whole log of a run as [`BACKING_LOG`], and links [`LIVE_LOG`] to it.
///
/// ```no_run
/// # use tenure_client::{Claim, Error, Upload, live_log};
/// # async fn example(claim: &Claim) -> Result<(), Error> {
/// let expires = claim.task().expires;
/// let log = Upload::from_path("job.log".as_ref(), live_log::LOG_CONTENT_TYPE, expires)?;
/// live_log::publish(claim.client(), claim.task_id(), claim.run_id(), &log, expires).await
/// # }
/// ```
pub async fn publish(
    client: &Client,
    task_id: TaskId,
    run_id: RunId,
    log: &Upload,
    expires: Timestamp,
) -> Result<(), Error> {
    client.upload(task_id, run_id, BACKING_LOG, log).await?;
    let (artifact, content_type) = (BACKING_LOG.to_owned(), LOG_CONTENT_TYPE.to_owned());
    let link = NewArtifact::Link { artifact, content_type, expires };
    client.create_artifact(task_id, run_id, LIVE_LOG, &link).await.map(|_none| ())
}

fn path(task_id: TaskId, run_id: RunId) -> String {
    format!("/tasks/{}/runs/{}/live-log", parameter(&task_id), parameter(&run_id))
}
