//! A client as authentication needs it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_api::credentials::{AccessToken, SigningKey};
use tenure_domain::roles::{GIVEN_MAX, Resolver, TooLarge};
use tenure_domain::scopes::ScopeSet;
use tenure_store::clients::ClientAccount;

use super::AuthFailure;

/// Scopes with everything that roles give; shared by all requests of a client.
pub(super) type Expanded = Result<Arc<ScopeSet>, TooLarge>;

/// A client that can prove itself, with everything about it worked out that does not depend on the request.
pub(super) struct Account {
    pub(super) client_id: String,
    pub(super) token: AccessToken,
    pub(super) key: SigningKey,
    pub(super) own_scopes: Vec<String>,
    /// What it may do by the roles that were valid at the last request.
    pub(super) expanded: Mutex<Option<(Arc<Resolver>, Expanded)>>,
    pub(super) expires_ms: Option<i64>,
    pub(super) disabled: bool,
    pub(super) expired: bool,
    /// Whether the next use is worth a note.
    pub(super) use_is_news: AtomicBool,
}

impl Account {
    pub(super) fn new(client_id: &str, client: ClientAccount) -> Self {
        Self {
            client_id: client_id.to_owned(),
            key: client.access_token.key(),
            token: client.access_token,
            own_scopes: client.scopes,
            expanded: Mutex::default(),
            expires_ms: client.expires.map(|time| time.timestamp_millis()),
            disabled: client.disabled,
            expired: client.expired,
            use_is_news: AtomicBool::new(client.use_is_news),
        }
    }

    /// Whether the client may come in. Only a caller that has proven that it has the client's token, or credentials
    /// that were made with it, may be told.
    pub(super) fn check_usable(&self) -> Result<(), AuthFailure> {
        if self.disabled {
            return Err(AuthFailure::Disabled(self.client_id.clone()));
        }
        if self.expired {
            return Err(AuthFailure::Expired(self.client_id.clone()));
        }
        Ok(())
    }

    /// What the client may do by these roles, if that was worked out already.
    pub(super) fn find_scopes(&self, roles: &Arc<Resolver>) -> Option<Expanded> {
        let expanded = self.expanded.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, scopes) = expanded.as_ref().filter(|(by, _)| Arc::ptr_eq(by, roles))?;
        Some(scopes.clone())
    }

    /// What the client may do by these roles, worked out once for them, if they give no more bytes than this on the way there.
    pub(super) fn scopes(&self, roles: &Arc<Resolver>, given_max: usize) -> Expanded {
        if let Some(known) = self.find_scopes(roles) {
            return known;
        }
        // Without the lock, for which the event loop would wait.
        let scopes = roles.expand_within(self.own_scopes.iter().cloned(), given_max).map(Arc::new);
        if scopes.is_ok() || given_max >= GIVEN_MAX {
            let mut expanded = self.expanded.lock().unwrap_or_else(PoisonError::into_inner);
            *expanded = Some((Arc::clone(roles), scopes.clone()));
        }
        scopes
    }
}
