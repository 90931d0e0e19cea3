//! The domain rules as pure, total functions: no SQL, no HTTP, no clock, no randomness.
#![deny(clippy::wildcard_enum_match_arm)]

pub mod admission;
pub mod artifact;
pub mod checkpoint;
pub mod create;
pub mod duty_cycle;
pub mod election;
pub mod enqueue;
pub mod event_filter;
pub mod events;
pub mod grants;
pub mod json;
pub mod lifecycle;
pub mod live_log;
pub mod message;
pub mod policy;
pub mod presence;
pub mod purge_cache;
pub mod registration;
pub mod release;
pub mod roles;
pub mod schedule;
pub mod scopes;
pub mod session;
pub mod submit;
pub mod task;
pub mod topic;
pub mod unacceptable;
pub mod verdict;
pub mod work;
pub mod worker;
