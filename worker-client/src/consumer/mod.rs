//! A consumer: claims tasks of a queue, renews their leases, and passes them to a handler.
//!
//! ```no_run
//! use tenure_client::Client;
//! use tenure_client::consumer::{Consumer, Job, Outcome, Stop};
//!
//! #[derive(serde::Deserialize)]
//! struct Email { to: String }
//!
//! async fn send(email: &Email) -> std::io::Result<()> { println!("to {}", email.to); Ok(()) }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let consumer = Consumer::builder(Client::from_env()?, "acme/mail".parse()?)
//!     .name("eu", "mail-1").capacity(8)
//!     .handler(|job: Job<Email>, stop: Stop| async move {
//!         tokio::select! {
//!             sent = send(job.payload()) => Outcome::of(sent),            // Ok: completed, Err: failed
//!             () = stop.requested() => Outcome::Release { after: None },  // another worker begins anew
//!         }
//!     })
//!     .build()?;
//! consumer.run_until(tokio::signal::ctrl_c()).await?;
//! # Ok(()) }
//! ```
//!
//! It takes care of:
//!
//! - **One run, one worker.** A claim is renewed at ¾ of its lease, by the server's dates and the
//!   monotonic clock. If renewal fails, or the [session](ConsumerBuilder::session) cannot be
//!   reached, the handler is asked to [stop](Stop), a [grace](ConsumerBuilder::grace) before the
//!   server may give the run to another worker. A refused run stops at once and sends no further
//!   requests. A handler that continues is counted ([`Status::claims_overrun`]); its report is
//!   fenced.
//! - **Dead workers.** Their [session](ConsumerBuilder::session) ends after two minutes, and their
//!   tasks go to others.
//! - **Runs ended from outside**: cancelled, past the deadline, or claimed by another worker. Their
//!   handlers are stopped within a second; [without a session](ConsumerBuilder::without_session),
//!   at the next renewal.
//! - **One process per name.** A starting consumer takes over the session of its name. The previous
//!   process ends with [`Error::SessionEnded`](crate::Error::SessionEnded).
//! - **Reports.** Each outcome is reported until it is answered or the lease is over. Reports of
//!   short jobs share requests, with the next claims too.
//! - **Logs** ([`Job::log`]) can be followed while the handler works, and are artifacts before the
//!   job is reported.
//! - **Checkpoints** ([`Job::checkpoint`]) show a job's progress. The next run resumes from them
//!   ([`Job::last_checkpoint`]).
//! - **A state machine** around the handler, if wanted: [`statemachine`].
//! - **Kinds of jobs**, each with its own handler ([`ConsumerBuilder::on`]), concurrency and timeout
//!   ([`Limited`]).
//! - **Shutdown.** All handlers are asked to stop and awaited without a limit; then the session is
//!   closed.
//! - **Commands** of operators: freeze, unfreeze, balance, stop a task, shut down.
//! - **Balance** with a [`balancer`]: long tasks move to workers with fewer.
//!
//! Stopping on request is left to the handler; nothing is ever aborted, except at the timeout of a
//! [`Limited`] handler.
//!
//! A consumer needs a Tenure server, as others have neither results nor sessions. With its own
//! [`source`] it works with other servers too.

mod balance;
pub mod balancer;
mod builder;
mod by_kind;
mod by_name;
mod claims;
mod control;
mod exchange;
mod given;
mod handler;
mod held;
mod inner;
mod jobs;
mod limited;
mod log;
mod membership;
mod offers;
mod outbox;
mod outcome;
mod progress;
mod queue_follower;
mod running;
mod session;
mod settings;
mod shares;
mod slots;
pub mod source;
pub mod statemachine;
mod status;
mod stop;
pub mod testing;

pub use builder::{BuildError, ConsumerBuilder, SESSION_TTL};
pub use handler::{Handler, Job};
pub use limited::Limited;
pub use log::JobLog;
pub use outcome::{OnPanic, Outcome};
pub use running::{Consumer, ConsumerHandle};
pub use status::{JobState, JobStatus, Status};
pub use stop::{EndedRun, HowLost, Stop, StopReason};
