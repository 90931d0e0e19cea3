//! Caches of the database.
//!
//! - [`registry`]: all caches, to invalidate them together.
//! - [`Facts`]: small facts whose changes take effect on every server within half a second.
//!
//! # A new fact
//!
//! Add a file to this folder that implements [`Fact`], and an entry to [`Facts`]. A migration
//! inserts its row of `fact_generations`; every change calls [`tenure_store::facts::raise`] in the
//! same transaction.
//!
//! # How a change arrives
//!
//! A change raises the generation of its fact, and notifies every server on commit. Each server
//! reads all generations in one statement ([`Facts::refresh`]) every half second, on notification,
//! and after its own changes. It then reads the facts whose generation differs. If a read fails,
//! the last value stays in use.

pub mod enqueue_roles;
mod fact;
pub mod partitions;
pub mod quarantines;
pub mod registry;
pub mod removals;
pub mod roles;
pub mod subscriptions;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use self::enqueue_roles::EnqueueRoles;
use self::fact::{AnyFact, Poll};
pub use self::fact::{Fact, Remembered};
use self::partitions::Partitions;
use self::quarantines::{DatabaseClock, Quarantined, Quarantines};
use self::removals::Removals;
use self::roles::Roles;
use self::subscriptions::Subscriptions;
use tenure_domain::worker::WorkerKey;
use tenure_store::facts;

macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident: $fact:ty,)+) => {
        /// The cached facts and their reader. Clones share them.
        #[derive(Clone)]
        pub struct Facts {
            pool: PgPool,
            turns: Arc<AtomicU64>,
            clock: DatabaseClock,
            $($(#[$doc])* pub $name: Remembered<$fact>,)+
        }

        impl Facts {
            pub fn new(pool: PgPool) -> Self {
                Self { pool, turns: Arc::default(), clock: DatabaseClock::default(), $($name: Remembered::default(),)+ }
            }

            fn all(&self) -> Vec<&dyn AnyFact> {
                vec![$(&self.$name),+]
            }
        }
    };
}

facts! {
    roles: Roles,
    /// Workers that get no work.
    quarantines: Quarantined,
    removals: Removals,
    /// Empty until the first role is allowed.
    enqueue_roles: EnqueueRoles,
    subscriptions: Subscriptions,
    partitions: Partitions,
}

impl Facts {
    /// Reads all generations and then the changed facts; returns their number. Afterwards the cache
    /// has every change committed before the call. After a failed query, unread facts keep their
    /// last values.
    pub async fn refresh(&self) -> Result<usize, sqlx::Error> {
        let mut conn = self.pool.acquire().await?;
        let poll = Poll { turn: self.next_turn(), began: Instant::now() };
        let generations = facts::get_generations(&mut conn).await?;
        if let Some(now) = generations.now {
            self.clock.set(now, poll.began);
        }
        let (mut changed, mut failed) = (0, None);
        for fact in self.all() {
            let generation = generations.of.get(fact.name()).copied().ok_or(sqlx::Error::RowNotFound)?;
            match fact.refresh(&mut conn, poll, generation).await {
                Ok(read) => changed += usize::from(read),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(changed), Err)
    }

    /// Roles were changed here: the cached value is unconfirmed.
    pub fn expire_roles(&self) {
        self.roles.expire(self.next_turn());
    }

    /// Applies a quarantine that this server has committed but could not read back.
    pub fn quarantine_here(&self, worker: &WorkerKey, until: DateTime<Utc>) {
        self.quarantines.amend(self.next_turn(), |quarantined| {
            let mut changed = quarantined.clone();
            changed.insert(worker.clone(), until);
            changed
        });
    }

    pub fn quarantines(&self) -> Quarantines {
        Quarantines::new(self.quarantines.clone(), self.clock.clone())
    }

    /// Forces the next poll to read everything. Until then the last values stay in use, so that
    /// quarantines are not lifted while unreadable.
    pub fn drop_all(&self) {
        for fact in self.all() {
            fact.expire(self.next_turn());
        }
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::SeqCst) + 1
    }
}
