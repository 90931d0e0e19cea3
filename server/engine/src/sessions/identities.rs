//! Cache of each session's worker and queue. They never change, so that requests of a session need
//! no query.

use std::collections::HashMap;
use std::mem;

use tenure_api::ids::SessionId;
use tenure_domain::session::Identity;
use tenure_store::cached::{Cached, Epoch};

/// Capacity of a generation; the cache has two.
const GENERATION_MAX: usize = 10_000;

/// Sessions named by requests. Clones share the cache.
#[derive(Debug, Clone, Default)]
pub struct Identities {
    generations: Cached<Generations>,
}

/// Entries go to the newer generation. When it is full, the older one is dropped.
#[derive(Debug, Default)]
struct Generations {
    newer: HashMap<SessionId, Identity>,
    older: HashMap<SessionId, Identity>,
}

impl Generations {
    fn insert(&mut self, identity: Identity) {
        if self.newer.len() >= GENERATION_MAX {
            self.older = mem::take(&mut self.newer);
        }
        self.newer.insert(identity.id, identity);
    }
}

impl Identities {
    /// Call it before the query whose result goes to [`Identities::note`].
    pub fn epoch(&self) -> Epoch {
        self.generations.epoch()
    }

    pub fn find(&self, id: SessionId) -> Option<Identity> {
        // Before the read, as for a query.
        let since = self.epoch();
        let (found, is_old) = self.generations.read(|all| {
            let newer = all.newer.get(&id).cloned();
            let is_old = newer.is_none();
            (newer.or_else(|| all.older.get(&id).cloned()), is_old)
        });
        if let (Some(identity), true) = (&found, is_old) {
            self.note(since, identity.clone());
        }
        found
    }

    pub fn note(&self, since: Epoch, identity: Identity) {
        self.generations.update(since, |all| all.insert(identity));
    }

    pub fn remove(&self, id: SessionId) {
        self.generations.update(self.generations.epoch(), |all| (all.newer.remove(&id), all.older.remove(&id)));
    }

    pub fn drop_all(&self) {
        self.generations.drop_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use uuid::Uuid;

    fn id(n: usize) -> SessionId {
        SessionId::new(Uuid::from_u128(n as u128))
    }

    fn identity(n: usize) -> Identity {
        Identity {
            id: id(n),
            epoch: i64::try_from(n).unwrap(),
            queue: "acme/linux".parse().unwrap(),
            worker_group: "rack-1".parse().unwrap(),
            worker_id: "worker-1".parse().unwrap(),
            ttl: 120,
            started: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn named_sessions_are_cached_for_two_generations() {
        let identities = Identities::default();
        for n in 0..GENERATION_MAX * 3 {
            identities.note(identities.epoch(), identity(n));
            assert_eq!(identities.find(id(0)), Some(identity(0)), "it is named again and again");
        }
        assert_eq!(identities.find(id(1)), None);
        let remembered = identities.generations.read(|all| all.newer.len() + all.older.len());
        assert!(remembered <= 2 * GENERATION_MAX, "{remembered}");
    }
}
