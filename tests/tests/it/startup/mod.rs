//! Starts and commands that fail: another key, no data, no database, closed terminals and pipes,
//! signals. Also secrets in files, delayed drains, and messages to a service manager.

mod closed;
mod databases;
mod drain_delay;
mod keys;
mod nothing_there;
mod pid_one;
mod poolers;
mod secrets;
mod service_manager;
mod signals;
