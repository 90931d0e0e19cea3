//! A client of the queue for submitters and workers.
//!
//! [`Client::queue`] adds typed jobs to a queue and returns a [`Handle`] of each. Most workers want
//! a [`consumer::Consumer`], which handles everything except the work itself; [`testing`] is for
//! unit tests of its handlers. The parts can be used alone:
//!
//! [`Client`] signs and retries requests; [`Client::claim_work`] returns [`Claim`]s. A report
//! consumes its claim, so a second report does not compile. A claim given to another worker is a
//! value ([`Lost`]), not an error. The program `tenure-worker` is built on this crate.
//!
//! Apart from the consumer and Tenure's own calls, everything works with any server of the
//! Taskcluster Queue API.

#[macro_use]
mod notice;

mod access;
pub mod artifacts;
mod audit;
mod calls;
mod checkpoints;
mod claim;
mod client;
mod clock;
pub mod consumer;
mod dead_letters;
pub mod debug;
mod enqueue;
pub mod error;
mod events;
mod failure;
mod handle;
mod jobs;
pub mod keep;
mod kinds;
mod lease;
pub mod live_log;
mod messages;
pub mod partition;
mod partitions;
mod policies;
mod read_log;
pub mod retry;
mod schedules;
mod sessions;
mod signed_url;
mod statistics;
mod submit;
mod subscriptions;
mod tasks;
mod tenure;
mod wire;
mod work;
mod workers;

pub use artifacts::{Artifact, Downloaded, NewArtifact, PutUrl, UnusableBecause, Upload};
pub use audit::AuditFilter;
pub use calls::CallCounts;
pub use checkpoints::Checkpoint;
pub use claim::{Claim, Lost, LostBecause, NotReported, Renewal, Reported, WorkerName};
pub use client::{Client, ClientBuilder};
pub use consumer::testing;
pub use dead_letters::DeadLetterFilter;
pub use enqueue::{Enqueue, EnqueueAllError, EnqueueError, Queue};
pub use error::Error;
pub use events::EventStream;
pub use handle::{Handle, ResultError};
pub use lease::Lease;
pub use live_log::LiveLogAppended;
pub use messages::{Message, MessageQueue, PollUrls, Undecodable};
pub use read_log::LogStream;
pub use reqwest::Method;
pub use retry::RetryPolicy;
pub use schedules::Schedule;
pub use serde_json::value::RawValue;
pub use sessions::{Inbox, InboxItem};
pub use statistics::StatisticsRange;
pub use tenure::{GroupChange, TaskChange};
pub use tenure_api::checkpoints::{CommandOfTask, TaskCommandRequest};
pub use tenure_api::credentials::{AccessToken, Credentials};
pub use tenure_api::dates::Timestamp;
pub use tenure_api::dead_letters::{RedriveCopy, RedriveRequest};
pub use tenure_api::ids::{InvalidId, JobId, RunId, SessionId, TaskId, TaskQueueId, WorkerGroup, WorkerId};
pub use tenure_api::jobs::StartJobRequest;
pub use tenure_api::policy::{Failure, PauseRequest, ReleaseRequest};
pub use tenure_api::queue_keys::KeyRules;
pub use tenure_api::sessions::{
    CommandRequest, InboxEvent, QueueWorker, QueueWorkers, RenewSessionRequest, Session, SessionRenewed,
    SessionStarted, StartSessionRequest,
};
pub use tenure_api::states::{
    CatchUp, ExceptionReason, JobAction, OnDuplicate, Priority, ReasonResolved, SessionEnd, TaskCommand, WorkerCommand,
};
pub use tenure_api::subscriptions::After;
pub use tenure_api::tasks::{ListState, TaskFilter};
pub use tenure_api::work::{RunOutcome, RunResult};
pub use wire::{Metadata, NewTask, QueueCounts, RunStatus, State, Task, TaskStatus};
pub use work::Worked;

/// Checks that the README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
