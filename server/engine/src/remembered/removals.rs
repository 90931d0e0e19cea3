//! Removed workers, while the database has their rows.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{Fact, Remembered};
use crate::notifiers::Notifiers;
use tenure_store::worker_removals::{self, Gone};

#[derive(Debug)]
pub struct Removals;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Removed {
    since: HashMap<Gone, DateTime<Utc>>,
}

impl Fact for Removals {
    const NAME: &'static str = worker_removals::FACT;
    type Value = Removed;

    async fn read(conn: &mut PgConnection) -> Result<Removed, sqlx::Error> {
        Ok(Removed { since: worker_removals::list(conn).await? })
    }
}

impl Remembered<Removals> {
    /// Notifies this server's wait list of new removals.
    pub fn notify(&self, notifiers: Notifiers) {
        self.on_change(move |before, now| {
            for worker in now.news(before) {
                // Not awaited: the pass `removals` ends later claims.
                drop(notifiers.send_away(worker.clone()));
            }
        });
    }
}

impl Removed {
    pub fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// Lists workers removed, or removed again, since `before`.
    fn news<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Gone> {
        self.since.iter().filter(|(worker, since)| before.since.get(worker) != Some(since)).map(|(worker, _)| worker)
    }
}
