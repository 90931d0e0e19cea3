//! The one reader of the event log for everything that acts on it: it locks the cursor, finds the next part, lets a
//! [`Sink`] act on it, and advances the cursor in the same transaction.
//!
//! So each part is acted on once, by one server at a time, however many servers run the same sink: if a server dies
//! half-way, the changes of its sink are rolled back together with the cursor.

use sqlx::{Connection, PgConnection};

use tenure_store::log_readers;

use super::sequencer::Sequencer;
pub use tenure_store::log_readers::Part;

/// Acts on the event log part by part.
pub trait Sink: Send {
    /// Its row of the table `log_readers`, which holds its cursor.
    const NAME: &'static str;
    /// Rows of the log that one transaction reads; a row has up to a batch of transitions.
    const ROWS_MAX: i64;
    /// The result of acting on a part.
    type Outcome: Send;

    /// Acts on a part, within the transaction that advances the cursor. May be called again with the same part if that
    /// transaction does not commit.
    fn act(
        &mut self,
        transaction: &mut PgConnection,
        part: Part,
    ) -> impl Future<Output = Result<Self::Outcome, sqlx::Error>> + Send;
}

/// The result of reading the next part of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<T> {
    /// Another server is reading for this sink.
    Busy,
    /// Every part has been acted on.
    End,
    /// This many rows were acted on; more may be left.
    Rows(usize, T),
}

/// Gives positions to what is new in the log, and lets a sink act on the next part of it.
///
/// # Errors
/// If the database refuses; then nothing was done.
pub async fn read_next<S: Sink>(
    conn: &mut PgConnection,
    sequencer: &Sequencer,
    sink: &mut S,
) -> Result<Read<S::Outcome>, sqlx::Error> {
    sequencer.run(conn).await?;
    read_sequenced(conn, sink).await
}

/// The same for the part of the log that has positions already.
///
/// # Errors
/// If the database refuses; then nothing was done.
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
