//! Reader of the event log for passes that act on it. One transaction locks the cursor, finds the
//! next part, lets a [`Sink`] act on it, and advances the cursor.
//!
//! Each part is thus processed once, by one server at a time. If a server dies half-way, the sink's
//! changes are rolled back with the cursor.

use sqlx::{Connection, PgConnection};

use tenure_store::log_readers;

use super::sequencer::Sequencer;
pub use tenure_store::log_readers::Part;

pub trait Sink: Send {
    /// Row of the table `log_readers` with the cursor.
    const NAME: &'static str;
    /// Log rows per transaction. A row has up to a batch of transitions.
    const ROWS_MAX: i64;
    type Outcome: Send;

    /// Acts on a part in the transaction that advances the cursor. If that does not commit, the
    /// part may come again.
    fn act(
        &mut self,
        transaction: &mut PgConnection,
        part: Part,
    ) -> impl Future<Output = Result<Self::Outcome, sqlx::Error>> + Send;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<T> {
    /// Another server reads for this sink.
    Busy,
    End,
    /// Number of processed rows; more may be left.
    Rows(usize, T),
}

/// Sequences new events, and lets a sink act on the next part of the log.
///
/// # Errors
/// If the database refuses. Nothing was done then.
pub async fn read_next<S: Sink>(
    conn: &mut PgConnection,
    sequencer: &Sequencer,
    sink: &mut S,
) -> Result<Read<S::Outcome>, sqlx::Error> {
    sequencer.run(conn).await?;
    read_sequenced(conn, sink).await
}

/// Like [`read_next`], without sequencing new events.
///
/// # Errors
/// If the database refuses. Nothing was done then.
pub async fn read_sequenced<S: Sink>(conn: &mut PgConnection, sink: &mut S) -> Result<Read<S::Outcome>, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let part = match log_readers::lock_next(&mut transaction, S::NAME, S::ROWS_MAX).await? {
        log_readers::Next::Busy => return Ok(Read::Busy),
        log_readers::Next::End => return Ok(Read::End),
        log_readers::Next::Part(part) => part,
    };
    let outcome = sink.act(&mut transaction, part).await?;
    log_readers::advance(&mut transaction, S::NAME, part.through).await?;
    transaction.commit().await?;
    Ok(Read::Rows(usize::try_from(part.rows).unwrap_or_default(), outcome))
}
