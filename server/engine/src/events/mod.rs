//! Everything that reads the event log: to act on it, or to show it.
//!
//! - [`log_reader`] is for passes that must process every event once, even when a server dies: dependencies and groups.
//! - [`page`] and [`stream`] are for clients with a cursor of their own: they lose nothing within the retention.
//! - [`tail`] buffers the newest events while streams are open, so that many streams cost one reader.
//! - [`render`] is an event as it is sent, by streams and sinks alike.
//!
//! # A new sink
//!
//! A sink forwards events to another system, such as a webhook or an AMQP exchange. It is a file in this folder that
//! implements [`log_reader::Sink`], and a pass in `background/` that calls [`log_reader::read_next`] with it.
//!
//! - *Its cursor* is a row of the table `log_readers` under [`log_reader::Sink::NAME`]. A migration adds the row, with the
//!   position to begin after.
//! - *What it does with a part* happens in the transaction that advances the cursor, and so only in the database: no
//!   network call while a transaction is open. It writes what is to be sent into a table of its own (as dependencies do
//!   with `dependency_work`); its pass sends from there, and deletes what was delivered. It sends
//!   [`render::RenderedEvent`]s.
//! - *The log is truncated* by the pass `purge_events` (`store::events::purge`): events older than `--event-retention`, but
//!   none that a cursor in `log_readers` has not passed. So a sink that makes no progress holds the truncation back; the
//!   migration that removes a sink deletes its row.

pub mod log_reader;
pub mod page;
pub mod render;
pub mod sequencer;
pub mod stream;
pub mod tail;

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// After this position.
    After(i64),
    /// With the next event.
    Latest,
}

/// A position that is not in the log yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// The requested position.
    pub position: i64,
    /// The newest position.
    pub newest: i64,
}
