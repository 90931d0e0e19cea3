//! How this server reaches its database: every connection that it makes is made here.

use std::sync::Arc;

use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{Connection, PgConnection};

use crate::continuity::Continuity;
use crate::session;

/// Makes connections. Clones share what the connections have found out.
#[derive(Debug, Clone)]
pub struct Connector {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: PgConnectOptions,
    continuity: Continuity,
}

impl Connector {
    /// Connects with these options.
    #[must_use]
    pub fn new(options: PgConnectOptions) -> Self {
        Self { shared: Arc::new(Shared { options, continuity: Continuity::default() }) }
    }

    /// The options, for messages about them.
    #[must_use]
    pub fn options(&self) -> &PgConnectOptions {
        &self.shared.options
    }

    /// Whether the database is still the one that this server has read from.
    #[must_use]
    pub fn continuity(&self) -> &Continuity {
        &self.shared.continuity
    }

    /// The pool for cold statements. Connects when it is first used.
    #[must_use]
    pub fn pool(&self) -> PgPool {
        session::pool(&self.shared.options)
    }

    /// A pool of one connection for something that keeps it, with a name of its own in `pg_stat_activity`.
    #[must_use]
    pub fn small_pool(&self, name: &str) -> PgPool {
        session::small_pool(&self.shared.options, name)
    }

    /// A session of its own for hot statements: plans are made only from index scans and nested loops, so that no
    /// statistics can turn them into scans of whole tables.
    ///
    /// # Errors
    /// If the database cannot be reached.
    pub async fn connect_hot(&self) -> Result<PgConnection, sqlx::Error> {
        PgConnection::connect_with(&session::hot(&self.shared.options)).await
    }
}
