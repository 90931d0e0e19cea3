//! A state machine around a [`Handler`], for tasks that people steer while they are under way: they are put to sleep, paused, killed, and
//! go on from where they were, perhaps on another worker.
//!
//! The state is kept in the task's checkpoint, together with what the handler stores by [`Job::checkpoint`], which may have 63 KiB beside
//! it. A worker that claims the task reads it, and goes on from there:
//!
//! | state | what the machine does |
//! |---|---|
//! | runnable | the handler works |
//! | sleeping, at fault | the run is released until then; the next one, on whichever worker, finds the task runnable |
//! | paused | the run is released until the deadline, so that no worker holds the task; a command makes it claimable at once |
//! | completed | the run is reported as completed, with the handler's result |
//! | failed, killed | the run is reported as failed, with the errors in the result |
//!
//! Of a task only 200 runs may be released. From run 200 on the machine does not release but waits within the run, which renews its claim
//! meanwhile; one that is [to stay](Machine::within_the_run) does so from the first run on.
//!
//! A task that has ended and is run again begins as runnable, with what the handler stored.
//!
//! What the handler returns is a message too: completed is *complete*; failed, retry and a panic are *error*; a release is *release*, and one
//! with a delay *sleep*. Only an exception is reported as it is. Others send messages as commands for the task
//! ([`Client::command_task`](crate::Client::command_task)): the last one counts. A worker reads it when it has claimed the task, hears of it
//! by its session's inbox while it holds the task, and without a session asks every 20 s or as [`ConsumerBuilder::commands_every`](super::ConsumerBuilder::commands_every) says. A handler that works is asked to stop first
//! ([`StopReason::Command`]), but for *run* and *checkpoint*; if it returns completed nevertheless, the task is completed. A message is
//! stored together with its effect, so that none counts twice.
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
