//! A client's scopes expanded by roles, computed once for its own scopes and one state of the roles.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_domain::roles::{Resolver, TooLarge};
use tenure_domain::scopes::ScopeSet;

/// Scopes with everything that roles give; shared by all requests of a client.
pub(super) type Expanded = Result<Arc<ScopeSet>, TooLarge>;

/// The scopes of a client, and what they came to by the roles that were valid at the last request.
pub(super) struct Expansion {
    own: Vec<String>,
    last: Mutex<Option<(Arc<Resolver>, Expanded)>>,
}

impl Expansion {
    /// That of these scopes. It is the one before if they have not changed: a client is read again each second, and what it may do is
    /// not worked out again for that.
    pub(super) fn of(own: Vec<String>, before: Option<&Arc<Self>>) -> Arc<Self> {
        match before {
            Some(before) if before.own == own => Arc::clone(before),
            _ => Arc::new(Self { own, last: Mutex::default() }),
        }
    }

    /// What the client may do by these roles.
    pub(super) fn by(&self, roles: &Arc<Resolver>) -> Expanded {
        if let Some((by, scopes)) = &*self.last()
            && Arc::ptr_eq(by, roles)
        {
            return scopes.clone();
        }
        // Without the lock, for which other requests of the client would wait: it may take long. Those that come meanwhile find the same.
        let scopes = roles.expand(self.own.iter().cloned()).map(Arc::new);
        let before = self.last().replace((Arc::clone(roles), scopes.clone()));
        // This may take long too.
        drop(before);
        scopes
    }

    fn last(&self) -> MutexGuard<'_, Option<(Arc<Resolver>, Expanded)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
