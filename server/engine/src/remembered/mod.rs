//! What a server caches from the database.
//!
//! - [`registry`]: all caches, so that all of them can be dropped at once.
//! - [`Facts`]: small facts of which changes take effect on every server within half a second.
//!
//! # A new fact
//!
//! A file of this folder that implements [`Fact`], and an entry in [`Facts`]. A migration gives it a row in
//! `fact_generations`; every change calls [`tenure_store::facts::raise`] in the same transaction.
//!
//! # How a change gets here
//!
//! A change raises the generation of its fact, and notifies every server when it commits. Each server reads all generations
//! in one statement ([`Facts::look`]): every half second, when it is notified, and after a change of its own; and it reads
//! again the facts whose generation differs. If a fact cannot be read, its last value stays in use.

mod fact;
pub mod quarantines;
pub mod registry;
pub mod removals;
pub mod roles;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgPool;

use self::fact::{AnyFact, Look};
pub use self::fact::{Fact, Remembered};
use self::quarantines::{DatabaseClock, Quarantined, Quarantines};
use self::removals::Removals;
use self::roles::Roles;
use tenure_domain::worker::WorkerKey;
use tenure_store::facts;

macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident: $fact:ty,)+) => {
        /// The cached facts, and their one reader. Clones share them.
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
    /// The scopes of roles.
    roles: Roles,
    /// Which workers get no work.
    quarantines: Quarantined,
    /// Which workers are gone.
    removals: Removals,
}

impl Facts {
    /// Reads the generations of all facts, and then the facts that have changed; answers how many. Changes that were
    /// committed before the call are in the cache afterwards.
    ///
    /// # Errors
    /// If a query fails: the facts that could not be read keep their last value.
    pub async fn look(&self) -> Result<usize, sqlx::Error> {
        let mut conn = self.pool.acquire().await?;
        let look = Look { turn: self.next_turn(), began: Instant::now() };
        let generations = facts::get_generations(&mut conn).await?;
        if let Some(now) = generations.now {
            self.clock.set(now, look.began);
        }
        let (mut changed, mut failed) = (0, None);
        for fact in self.all() {
            let generation = generations.of.get(fact.name()).copied().ok_or(sqlx::Error::RowNotFound)?;
            match fact.refresh(&mut conn, look, generation).await {
                Ok(read) => changed += usize::from(read),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(changed), Err)
    }

    /// Roles were changed at this server: the cached value is not confirmed any more.
    pub fn expire_roles(&self) {
        self.roles.expire(self.next_turn());
    }

    /// A quarantine that was committed at this server takes effect here, although the facts could not be read after it.
    pub fn quarantine_here(&self, worker: &WorkerKey, until: DateTime<Utc>) {
        self.quarantines.amend(self.next_turn(), |quarantined| {
            let mut changed = quarantined.clone();
            changed.insert(worker.clone(), until);
            changed
        });
    }

    /// The quarantines, with the clock that their ends are compared with.
    pub fn quarantines(&self) -> Quarantines {
        Quarantines::new(self.quarantines.clone(), self.clock.clone())
    }

    /// Makes the next look read everything again. Until then the last values are still used where one is needed: a
    /// quarantine is not lifted because it cannot be looked up.
    pub fn drop_all(&self) {
        for fact in self.all() {
            fact.expire(self.next_turn());
        }
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::SeqCst) + 1
    }
}
