//! A state machine around a [`Handler`], for tasks that people control while they run. Tasks can
//! sleep, be paused or killed, and resume where they were, perhaps on another worker.
//!
//! The state is stored in the task's checkpoint, beside up to 63 KiB stored by the handler with
//! [`Job::checkpoint`]:
//!
//! | state | action of the machine |
//! |---|---|
//! | runnable | runs the handler |
//! | sleeping, at fault | releases the run until then; the next run finds the task runnable |
//! | paused | releases the run until the deadline; a command makes it claimable at once |
//! | completed | reports the run as completed, with the handler's result |
//! | failed, killed | reports the run as failed for good, with the errors in the result |
//!
//! At most 200 runs of a task may be released. From run 200 on, or from the first run [if
//! set](Machine::within_the_run), the machine waits within the run, which renews its claim.
//!
//! A rerun of an ended task starts as runnable, with the handler's checkpoint.
//!
//! The handler's outcome is a message: completed is *complete*; failed, retry and a panic are
//! *error*; a release is *release*, and with a delay *sleep*. An exception and a failure for good are
//! reported as they are.
//!
//! Other messages are commands for the task
//! ([`Client::command_task`](crate::Client::command_task)), of which the last is kept. A worker
//! reads it after claiming the task, and later learns of it from its session's inbox. Without a
//! session it polls every 20 s, or as set by
//! [`ConsumerBuilder::commands_every`](super::ConsumerBuilder::commands_every). A working handler
//! is first asked to stop ([`StopReason::Command`]), except for *run* and *checkpoint*. If it
//! returns completed nevertheless, the task is completed. A message is stored together with its
//! effect, so none is applied twice.
//!
//! ```
//! use tenure_client::Client;
//! use tenure_client::consumer::statemachine::Machine;
//! use tenure_client::consumer::{Consumer, Job, Outcome, Stop};
//!
//! # fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let machine = Machine::new(|job: Job, stop: Stop| async move {
//!     let mut done: u64 = job.last_checkpoint().await.ok().flatten().unwrap_or(0);
//!     while done < 100 && stop.reason().is_none() {
//!         done += 1; // the work
//!         if job.checkpoint(&done).await.is_err() {
//!             break;
//!         }
//!     }
//!     if done < 100 { Outcome::Release { after: None } } else { Outcome::Completed(None) }
//! });
//! let consumer = Consumer::builder(client, "acme/long".parse()?).name("eu", "long-1").handler(machine).build()?;
//! # drop(consumer);
//! # Ok(()) }
//! ```
//!
//! [`Handler`]: super::Handler
//! [`Job::checkpoint`]: super::Job::checkpoint
//! [`StopReason::Command`]: super::StopReason::Command

mod run;
pub(super) mod state;

pub use run::Machine;
pub use state::{ERRORS_MAX, ERRORS_WITHIN, ErrorNote, FAULT_SLEEP, Message, Record, Refused, State};
