//! Checks, on one session, whether the database still continues the state this server has read.
//!
//! A promoted standby may lack the last sequence positions, a restored database may lack any data,
//! and a crash may lose unflushed changes. Each ends sessions or shows in the next position read.
//! Then all caches are dropped ([`Continuity`]).

use sqlx::PgConnection;
use tokio::sync::{Mutex, MutexGuard};

use super::session::Session;
use crate::failure::Failure;
use tenure_store::connector::Connector;
use tenure_store::continuity::{Break, Continuity};
use tenure_store::failure::ends_session;
use tenure_store::low_water_marks::{self, Writer};

pub struct ContinuityCheck {
    continuity: Continuity,
    state: Mutex<CheckState>,
}

struct CheckState {
    session: Session,
    last_check: Option<LastCheck>,
}

#[derive(Debug, Clone, Copy)]
struct LastCheck {
    /// Number of the session's connection.
    connection: u64,
    last: i64,
    /// Last position known to be durable: it is never assigned again.
    kept: Option<i64>,
}

fn find_break(last_check: Option<LastCheck>, connection: u64, last: i64) -> Option<Break> {
    let last_check = last_check?;
    if connection != last_check.connection {
        return Some(Break::SessionLost);
    }
    (last < last_check.last).then_some(Break::PositionWentBack)
}

impl ContinuityCheck {
    /// Creates a check. The first run sets the baseline.
    pub fn new(connector: &Connector) -> Self {
        let state = CheckState { session: Session::new(connector.clone()), last_check: None };
        Self { continuity: connector.continuity().clone(), state: Mutex::new(state) }
    }

    /// Reads the position. If the database is not the one last seen, drops all caches before
    /// returning.
    pub async fn run_check(&self) -> Result<Checked<'_>, Failure> {
        let mut state = self.state.lock().await;
        let last = state.session.run(low_water_marks::get_position).await?;
        let connection = state.session.connections();
        let found = find_break(state.last_check, connection, last);
        let kept = state.last_check.filter(|_| found.is_none()).and_then(|last_check| last_check.kept);
        state.last_check = Some(LastCheck { connection, last, kept });
        if let Some(found) = found {
            self.continuity.broken(found);
        }
        Ok(Checked { state, last })
    }
}

pub struct Checked<'a> {
    state: MutexGuard<'a, CheckState>,
    last: i64,
}

impl Checked<'_> {
    /// Returns the last assigned position, which is never assigned again from now on, and the
    /// transactions that may still commit one up to it. Waits for synchronous standbys.
    pub async fn keep_position(&mut self) -> Result<(i64, Vec<Writer>), Failure> {
        let Some(mut last_check) = self.state.last_check else { return Ok((0, Vec::new())) };
        if last_check.kept != Some(self.last) {
            self.run(low_water_marks::keep_positions).await?;
            last_check.kept = Some(self.last);
            self.state.last_check = Some(last_check);
        }
        let writers = self.run(low_water_marks::list_writers).await?;
        Ok((self.last, writers))
    }

    /// Runs a statement on the checking session. If the statement itself fails, reconnecting
    /// afterwards drops no caches.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn run<T>(
        &mut self,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, Failure> {
        let result = self.state.session.run(statement).await;
        if let Err(failure) = &result
            && failure.error().as_database_error().is_some()
            && !ends_session(failure.error())
            && !failure.keeps_session()
            && let Some(last_check) = &mut self.state.last_check
        {
            last_check.connection += 1;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_connection_or_lower_position_is_break() {
        let last_check = LastCheck { connection: 1, last: 10, kept: None };
        let table = [
            (None, 5, 3, None),
            (Some(last_check), 1, 10, None),
            (Some(last_check), 1, 11, None),
            (Some(last_check), 1, 9, Some(Break::PositionWentBack)),
            (Some(last_check), 2, 11, Some(Break::SessionLost)),
            (Some(last_check), 2, 9, Some(Break::SessionLost)),
        ];
        for (before, connection, last, expected) in table {
            assert_eq!(find_break(before, connection, last), expected, "{before:?}, {connection}, {last}");
        }
    }
}
