//! Starts and commands that fail: another key, no data, no database, closed terminals and pipes,
//! signals.

mod closed;
mod databases;
mod keys;
mod nothing_there;
mod pid_one;
mod poolers;
mod signals;
