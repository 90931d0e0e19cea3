//! Caches a client's scopes expanded by roles, per set of scopes and state of the roles.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_domain::roles::{GIVEN_MAX, Resolver, TooLarge};
use tenure_domain::scopes::ScopeSet;

/// Shared by all requests of a client.
pub(super) type Expanded = Result<Arc<ScopeSet>, TooLarge>;

/// Roles, and a limit of the bytes that they may add.
#[derive(Clone, Copy)]
pub(super) struct Roles<'a> {
    resolver: &'a Arc<Resolver>,
    given_max: usize,
}

impl<'a> Roles<'a> {
    pub(super) fn within(resolver: &'a Arc<Resolver>, given_max: usize) -> Self {
        Self { resolver, given_max }
    }

    pub(super) fn whole(resolver: &'a Arc<Resolver>) -> Self {
        Self::within(resolver, GIVEN_MAX)
    }

    pub(super) fn expand(self, scopes: impl IntoIterator<Item = String>) -> Result<ScopeSet, TooLarge> {
        self.resolver.expand_within(scopes, self.given_max)
    }
}

/// A client's own scopes, and their expansion by the last roles.
pub(super) struct Expansion {
    own: Vec<String>,
    last: Mutex<Option<(Arc<Resolver>, Expanded)>>,
}

impl Expansion {
    /// Reuses `before` if the scopes have not changed, since a client is read every second.
    pub(super) fn of(own: Vec<String>, before: Option<&Arc<Self>>) -> Arc<Self> {
        match before {
            Some(before) if before.own == own => Arc::clone(before),
            _ => Arc::new(Self { own, last: Mutex::default() }),
        }
    }

    pub(super) fn by(&self, roles: Roles<'_>) -> Expanded {
        if let Some((by, scopes)) = &*self.last()
            && Arc::ptr_eq(by, roles.resolver)
        {
            return scopes.clone();
        }
        // Without the lock, since it may take long. Concurrent calls compute the same result.
        let scopes = roles.expand(self.own.iter().cloned()).map(Arc::new);
        // Not cached: a larger limit may succeed.
        if scopes.is_err() && roles.given_max < GIVEN_MAX {
            return scopes;
        }
        let before = self.last().replace((Arc::clone(roles.resolver), scopes.clone()));
        // May take long too, hence after the lock is released.
        drop(before);
        scopes
    }

    fn last(&self) -> MutexGuard<'_, Option<(Arc<Resolver>, Expanded)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
