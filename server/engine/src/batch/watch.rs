//! Watches, on one session, whether the database still continues the state this server has read.
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

pub struct DatabaseWatch {
    continuity: Continuity,
    watched: Mutex<Watched>,
}

struct Watched {
    session: Session,
    seen: Option<Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Number of the session's connection.
    connection: u64,
    last: i64,
    /// Last position known to be durable: it is never assigned again.
    kept: Option<i64>,
}

fn find_break(seen: Option<Seen>, connection: u64, last: i64) -> Option<Break> {
    let seen = seen?;
    if connection != seen.connection {
        return Some(Break::SessionLost);
    }
    (last < seen.last).then_some(Break::PositionWentBack)
}

impl DatabaseWatch {
    /// Creates a watch. It begins with the first look.
    pub fn new(connector: &Connector) -> Self {
        let watched = Watched { session: Session::new(connector.clone()), seen: None };
        Self { continuity: connector.continuity().clone(), watched: Mutex::new(watched) }
    }

    /// Reads the position. If the database is not the one last seen, drops all caches before
    /// returning.
    pub async fn look(&self) -> Result<Look<'_>, Failure> {
        let mut watched = self.watched.lock().await;
        let last = watched.session.run(low_water_marks::get_position).await?;
        let connection = watched.session.connections();
        let found = find_break(watched.seen, connection, last);
        let kept = watched.seen.filter(|_| found.is_none()).and_then(|seen| seen.kept);
        watched.seen = Some(Seen { connection, last, kept });
        if let Some(found) = found {
            self.continuity.broken(found);
        }
        Ok(Look { watched, last })
    }
}

pub struct Look<'a> {
    watched: MutexGuard<'a, Watched>,
    last: i64,
}

impl Look<'_> {
    /// Returns the last assigned position, which is never assigned again from now on, and the
    /// transactions that may still commit one up to it. Waits for synchronous standbys.
    pub async fn keep_position(&mut self) -> Result<(i64, Vec<Writer>), Failure> {
        let Some(mut seen) = self.watched.seen else { return Ok((0, Vec::new())) };
        if seen.kept != Some(self.last) {
            self.run(low_water_marks::keep_positions).await?;
            seen.kept = Some(self.last);
            self.watched.seen = Some(seen);
        }
        let writers = self.run(low_water_marks::list_writers).await?;
        Ok((self.last, writers))
    }

    /// Runs a statement on the watching session. If the statement itself fails, reconnecting
    /// afterwards drops no caches.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn run<T>(
        &mut self,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, Failure> {
        let result = self.watched.session.run(statement).await;
        if let Err(failure) = &result
            && failure.error().as_database_error().is_some()
            && !ends_session(failure.error())
            && !failure.keeps_session()
            && let Some(seen) = &mut self.watched.seen
        {
            seen.connection += 1;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_connection_or_lower_position_is_break() {
        let seen = Seen { connection: 1, last: 10, kept: None };
        let table = [
            (None, 5, 3, None),
            (Some(seen), 1, 10, None),
            (Some(seen), 1, 11, None),
            (Some(seen), 1, 9, Some(Break::PositionWentBack)),
            (Some(seen), 2, 11, Some(Break::SessionLost)),
            (Some(seen), 2, 9, Some(Break::SessionLost)),
        ];
        for (before, connection, last, expected) in table {
            assert_eq!(find_break(before, connection, last), expected, "{before:?}, {connection}, {last}");
        }
    }
}
