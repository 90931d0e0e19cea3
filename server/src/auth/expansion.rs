//! A client's scopes expanded by roles, computed once for its own scopes and one state of the roles; and how far roles are followed
//! while a request is checked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_domain::roles::{GIVEN_MAX, Resolver, TooLarge};
use tenure_domain::scopes::ScopeSet;

/// Scopes with everything that roles give; shared by all requests of a client.
pub(super) type Expanded = Result<Arc<ScopeSet>, TooLarge>;

/// Roles, and how many bytes they may give to a set of scopes.
#[derive(Clone, Copy)]
pub(super) struct Roles<'a> {
    resolver: &'a Arc<Resolver>,
    given_max: usize,
}

impl<'a> Roles<'a> {
    pub(super) fn within(resolver: &'a Arc<Resolver>, given_max: usize) -> Self {
        Self { resolver, given_max }
    }

    /// As much as roles may give at all.
    pub(super) fn whole(resolver: &'a Arc<Resolver>) -> Self {
        Self::within(resolver, GIVEN_MAX)
    }

    pub(super) fn expand(self, scopes: impl IntoIterator<Item = String>) -> Result<ScopeSet, TooLarge> {
        self.resolver.expand_within(scopes, self.given_max)
    }
}

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
    pub(super) fn by(&self, roles: Roles<'_>) -> Expanded {
        if let Some((by, scopes)) = &*self.last()
            && Arc::ptr_eq(by, roles.resolver)
        {
            return scopes.clone();
        }
        // Without the lock, for which other requests of the client would wait: it may take long. Those that come meanwhile find the same.
        let scopes = roles.expand(self.own.iter().cloned()).map(Arc::new);
        // That it was too much for now is not how it ends.
        if scopes.is_err() && roles.given_max < GIVEN_MAX {
            return scopes;
        }
        let before = self.last().replace((Arc::clone(roles.resolver), scopes.clone()));
        // This may take long too.
        drop(before);
        scopes
    }

    fn last(&self) -> MutexGuard<'_, Option<(Arc<Resolver>, Expanded)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
