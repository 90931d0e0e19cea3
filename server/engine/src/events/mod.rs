//! Everything that reads the event log: what acts on it, and what shows it.
//!
//! - [`log_reader`] is for what must see every event once, whatever server dies: the passes of dependencies and groups.
//! - [`page`] and [`stream`] are for readers who keep their own cursor: they lose nothing if they come back in time.
//! - [`tail`] keeps the newest events in memory while streams are open, so that many streams cost one reading.
//! - [`render`] is an event as it is sent, whatever sends it.
//!
//! # A new sink
//!
//! A sink is what sends events on to another system, such as a webhook or an AMQP exchange. It is a file in this folder
//! that implements [`log_reader::Sink`], and a pass in `background/` that calls [`log_reader::read_next`] with it.
//!
//! - *Its cursor* is a row of the table `log_readers` under [`log_reader::Sink::NAME`]. A migration adds the row, with the
//!   position to begin after.
//! - *What it does with a part* happens in the transaction that advances the cursor, and so only in the database: no
//!   network call while a transaction is open. It writes what is to be sent into a table of its own (as dependencies do
//!   with `dependency_work`); its pass sends from there, and deletes what has arrived. What it sends is made by
//!   [`render::RenderedEvent`].
//! - *The log is cut* by the pass `forget` (`store::events::forget`): events older than `--event-retention`, but none that
//!   a cursor in `log_readers` has not passed. So a sink that stands still keeps the log from being cut; one that is
//!   removed takes its row along.

pub mod log_reader;
pub mod page;
pub mod render;
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
