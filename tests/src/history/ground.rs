//! The database of a storm: one of the test cluster, or a separate cluster with a standby.

use sqlx::PgConnection;

use crate::db::{TestDatabase, violations};
use crate::replication::{APPLICATION, Replicated};

pub(super) enum Ground {
    Shared(TestDatabase),
    Replicated(Box<Replicated>),
}

impl Ground {
    pub(super) async fn create(replicated: bool) -> Self {
        if replicated {
            Self::Replicated(Box::new(Replicated::synchronous().await))
        } else {
            Self::Shared(TestDatabase::create_migrated().await)
        }
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Shared(database) => database.url().to_owned(),
            Self::Replicated(database) => database.forwarder.url(),
        }
    }

    pub(super) async fn connect(&self) -> PgConnection {
        match self {
            Self::Shared(database) => database.connect(APPLICATION).await,
            Self::Replicated(database) => database.primary.connect().await,
        }
    }

    pub(super) fn replicated(&mut self) -> Option<&mut Replicated> {
        match self {
            Self::Shared(_) => None,
            Self::Replicated(database) => Some(database),
        }
    }

    /// Checks the invariants. Skipped if a server is broken on purpose: then the rows may violate
    /// them too.
    pub(super) async fn finish(self, broken: bool) {
        match self {
            Self::Shared(database) if broken => database.abandon(),
            Self::Shared(_) => {}
            Self::Replicated(database) => {
                let violated = violations(&database.primary.url()).await.expect("the primary answers");
                assert!(broken || violated.is_empty(), "violated invariants: {violated:#?}");
            }
        }
    }
}
