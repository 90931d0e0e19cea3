//! What a server remembers from the database.
//!
//! - [`registry`]: everything that it remembers, so that all of it can be dropped at once.
//! - [`Facts`]: the small facts that every server must know within half a second of a change.
//!
//! # A new fact
//!
//! A file of this folder that implements [`Fact`], and a line in [`Facts`]. A migration gives it a row in
//! `fact_generations`; whatever changes it calls [`tenure_store::facts::raise`] in the same transaction.
//!
//! # How a change gets here
//!
//! A change raises the generation of its fact, and tells every server when it commits. Each server looks at all generations
//! in one statement ([`Facts::look`]): every half second, when it is told of a change, and after a change of its own; and it
//! reads again those that differ. A fact that cannot be read stays as it was known.

mod fact;
pub mod quarantines;
pub mod registry;
pub mod removals;
pub mod roles;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sqlx::PgPool;

use self::fact::{AnyFact, Look};
pub use self::fact::{Fact, Remembered};
use self::quarantines::{DatabaseClock, Quarantined, Quarantines};
use self::removals::Removals;
use self::roles::Roles;
use tenure_store::facts;

macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident: $fact:ty,)+) => {
        /// The facts that a server remembers, and their one reader. A clone is the same memory.
        #[derive(Clone)]
        pub struct Facts {
            pool: PgPool,
            turns: Arc<AtomicU64>,
            clock: DatabaseClock,
            $($(#[$doc])* pub $name: Remembered<$fact>,)+
        }

        impl Facts {
            /// Nothing is known yet.
            #[must_use]
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
    /// What roles give.
    roles: Roles,
    /// Which workers get no work.
    quarantines: Quarantined,
    /// Which workers are gone.
    removals: Removals,
}

impl Facts {
    /// Looks at the generations of all facts, and reads again those that have changed; answers how many. What was committed
    /// before the call is known afterwards.
    ///
    /// # Errors
    /// If the database refuses: then what was known of those that could not be read holds on.
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

    /// What roles give was changed at this server: what was known is not confirmed any more.
    pub fn expire_roles(&self) {
        self.roles.expire(self.next_turn());
    }

    /// The quarantines, with the clock that their ends are compared with.
    #[must_use]
    pub fn quarantines(&self) -> Quarantines {
        Quarantines::new(self.quarantines.clone(), self.clock.clone())
    }

    /// Makes the next look read everything again. Until then what was known is still used where it must be: a quarantine is
    /// not lifted because it cannot be looked up.
    pub fn drop_all(&self) {
        for fact in self.all() {
            fact.expire(self.next_turn());
        }
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::SeqCst) + 1
    }
}
