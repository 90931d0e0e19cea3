//! What a request has proven about its sender, and what the sender may do by it. These are two steps because roles that give
//! much are followed apart from the event loop, and only for a caller that has proven who it is.

use std::sync::Arc;

use tenure_domain::roles::{Resolver, assume_any};
use tenure_domain::scopes::ScopeSet;

use super::account::{Account, Expanded};
use super::{AuthFailure, Principal};

/// What an issuer needs before it can give temporary credentials this id.
const NAMING_SCOPE: &str = "auth:create-client:";

/// A client, and what it may do if that is known.
#[derive(Clone)]
pub(super) struct OfClient {
    account: Arc<Account>,
    known: Option<Arc<ScopeSet>>,
}

impl OfClient {
    pub(super) fn new(account: &Arc<Account>, roles: &Arc<Resolver>) -> Result<Self, AuthFailure> {
        Ok(Self { account: Arc::clone(account), known: account.find_scopes(roles).transpose()? })
    }

    fn scopes(&self, roles: &Arc<Resolver>, given_max: usize) -> Expanded {
        match &self.known {
            Some(known) => Ok(Arc::clone(known)),
            None => self.account.scopes(roles, given_max),
        }
    }
}

/// What the sender holds, before `authorizedScopes` narrow it.
#[derive(Clone)]
pub(super) enum Held {
    /// All that the client may do.
    Client(OfClient),
    /// What the client lends, if it has it.
    Lent {
        by: OfClient,
        /// Whether the credentials have a name of their own.
        is_named: bool,
        scopes: Vec<String>,
    },
    /// What the server has given.
    Issued(Vec<String>),
}

/// What was proven.
#[derive(Clone)]
pub(super) struct Proven {
    pub(super) client_id: String,
    pub(super) held: Held,
    pub(super) authorized_scopes: Option<Vec<String>>,
    /// When the credentials end, in milliseconds since 1970; none: never.
    pub(super) expires_ms: Option<i64>,
}

impl Proven {
    /// Whether roles must be followed to say what the sender may do.
    pub(super) fn assumes_roles(&self) -> bool {
        let held = match &self.held {
            Held::Client(client) => client.known.is_none(),
            Held::Lent { by, scopes, .. } => by.known.is_none() || assume_any(scopes),
            Held::Issued(scopes) => assume_any(scopes),
        };
        held || self.authorized_scopes.as_deref().is_some_and(assume_any)
    }

    /// The sender, and what it may do, if roles give no more bytes than this each time that they are followed.
    pub(super) fn principal(self, roles: &Arc<Resolver>, given_max: usize) -> Result<Principal, AuthFailure> {
        let scopes = match self.held {
            Held::Client(client) => client.scopes(roles, given_max)?,
            Held::Lent { by, is_named, scopes } => {
                let naming = is_named.then(|| format!("{NAMING_SCOPE}{}", self.client_id));
                check_lent(&*by.scopes(roles, given_max)?, naming.as_deref(), &scopes, &by.account.client_id)?;
                Arc::new(roles.expand_within(scopes, given_max)?)
            }
            Held::Issued(scopes) => Arc::new(roles.expand_within(scopes, given_max)?),
        };
        let scopes = match self.authorized_scopes {
            None => scopes,
            Some(narrowed) => match scopes.first_missing(&narrowed) {
                None => Arc::new(roles.expand_within(narrowed, given_max)?),
                Some(scope) => return Err(AuthFailure::AuthorizedScopes(scope.to_owned())),
            },
        };
        Ok(Principal { client_id: Some(self.client_id), scopes, expires_ms: self.expires_ms })
    }
}

/// An issuer lends only what it has, and only under a name that it may give.
fn check_lent(has: &ScopeSet, naming: Option<&str>, lent: &[String], issuer: &str) -> Result<(), AuthFailure> {
    let missing = naming.filter(|scope| !has.allows(scope));
    match missing.or_else(|| has.first_missing(lent)) {
        None => Ok(()),
        Some(scope) => Err(AuthFailure::IssuerScope { issuer: issuer.to_owned(), scope: scope.to_owned() }),
    }
}
