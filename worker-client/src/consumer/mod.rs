//! A consumer: claims the tasks of a queue, keeps their leases, and has a handler do them.
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
//! What it takes care of:
//!
//! - **One run, one worker.** A claim is renewed at ¾ of its lease, by the server's dates and the monotonic clock. If that fails, or
//!   the [session](ConsumerBuilder::session) cannot be reached, the handler is asked to [stop](Stop) a
//!   [grace](ConsumerBuilder::grace) before the server may give the run to another worker. A run that is refused stops at once, and
//!   nothing more is sent for it. A handler that goes on all the same is counted ([`Status::claims_overrun`]); its report is fenced.
//! - **A dead worker** costs two minutes: its [session](ConsumerBuilder::session) ends, and its tasks go to others.
//! - **A run that ends from outside** (its task was cancelled, its deadline has passed, another worker has it) stops its handler within a
//!   second. [Without a session](ConsumerBuilder::without_session) that is noticed at the next renewal.
//! - **One process has a name.** A consumer that starts takes over the session of its name. The one that had it ends with
//!   [`Error::SessionEnded`](crate::Error::SessionEnded), and never takes it back.
//! - **Every outcome is reported** until it is answered or the lease is over. Those of short jobs share requests.
//! - **A log** ([`Job::log`]) can be followed while the handler works, and is an artifact before the job is reported.
//! - **A checkpoint** ([`Job::checkpoint`]) shows how far a job has come, and is where the next run goes on ([`Job::last_checkpoint`]).
//! - **A state machine** around the handler, if that is wanted: [`statemachine`].
//! - **A shutdown** asks all handlers to stop and waits for them, however long they take; then the session is closed.
//! - **Commands** from operators arrive by the session's inbox: freeze, unfreeze, balance, stop a task, shut down.
//! - **Balance**, if it has a [`balancer`]: long tasks move from workers that have many to those that have few.
//!
//! What is left to the handler: to stop when it is asked to. Nothing is ever aborted, because only the handler knows how.
//!
//! It needs a Tenure server: others have neither results nor sessions. With a [`source`] of its own it works at others too.

mod balance;
pub mod balancer;
mod builder;
mod by_name;
mod claims;
mod control;
mod given;
mod handler;
mod held;
mod inner;
mod jobs;
mod log;
mod membership;
mod offers;
mod outbox;
mod outcome;
mod progress;
mod running;
mod session;
mod settings;
pub mod source;
pub mod statemachine;
mod status;
mod stop;
mod watch;

pub use builder::{BuildError, ConsumerBuilder, SESSION_TTL};
pub use handler::{Handler, Job};
pub use log::JobLog;
pub use outcome::{OnPanic, Outcome};
pub use running::{Consumer, ConsumerHandle};
pub use status::{JobState, JobStatus, Status};
pub use stop::{EndedRun, HowLost, Stop, StopReason};
