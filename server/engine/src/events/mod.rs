//! Readers of the event log.
//!
//! - [`log_reader`] serves passes that must process every event once, even across crashes:
//!   dependencies, groups and [`failures`].
//! - [`page`] and [`stream`] serve clients with their own cursors, without loss within the
//!   retention.
//! - [`tail`] buffers the newest events for all open streams.
//! - [`render`] renders events for streams and deliveries.
//! - [`deliveries`] sends events to the receivers of subscriptions.
//!
//! # A new sink
//!
//! A sink acts on every event within the database. It is a file in this folder that implements
//! [`log_reader::Sink`], and a pass in `background/` that calls [`log_reader::read_next`] with it.
//! Events for other systems, webhooks and AMQP brokers, are sent by [`deliveries`].
//!
//! - *Cursor*: a row of the table `log_readers` under [`log_reader::Sink::NAME`]. A migration adds
//!   the row with the position to begin after.
//! - *Transaction*: a sink acts on a part inside the transaction that advances the cursor, so it
//!   makes no network calls. It writes into a table, as dependencies do into `dependency_work`.
//! - *Retention*: the pass `purge_events` (`store::events::purge`) deletes events older than
//!   `--event-retention` that all cursors in `log_readers` and all active subscriptions have passed.
//!   A stuck sink therefore holds up the purge. The migration that removes a sink deletes its row.

pub mod deliveries;
pub mod failures;
pub mod log_reader;
pub mod page;
pub mod render;
pub mod sequencer;
pub mod stream;
pub mod tail;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// After this position.
    After(i64),
    /// With the next event.
    Latest,
}

/// A position not in the log yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    pub position: i64,
    pub newest: i64,
}
