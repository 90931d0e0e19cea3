//! The client and the worker against a scripted queue ([`queue::Queue`]), with real connections and
//! processes.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail as its tests do")]

mod artifacts;
mod audit;
mod binary;
mod client;
mod consumer;
mod enqueue;
mod exchange;
mod inputs;
mod kinds;
mod left_alone;
mod live_log;
mod machine;
mod mailbox;
mod places;
mod poll;
mod poll_refused;
mod processes;
mod queue;
mod results;
mod schedules;
mod secrets;
mod sessions;
mod store;
mod subscriptions;
mod uploads;
mod worker;
mod worker_session;
