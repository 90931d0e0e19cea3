//! Sink that copies failed runs to the table `failed_runs`.

use sqlx::PgConnection;

use super::log_reader::{Part, Sink};
use tenure_store::failures;

#[derive(Debug, Clone, Copy)]
pub struct FailureSink;

impl Sink for FailureSink {
    const NAME: &'static str = "failures";
    const ROWS_MAX: i64 = 200;
    /// Number of copied runs.
    type Outcome = u64;

    async fn act(&mut self, transaction: &mut PgConnection, part: Part) -> Result<u64, sqlx::Error> {
        failures::note(transaction, part).await
    }
}
