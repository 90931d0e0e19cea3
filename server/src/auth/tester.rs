//! The client for tests of signatures.

use std::sync::Arc;

use tenure_api::credentials::AccessToken;
use tenure_domain::roles::Resolver;
use tenure_store::clients::ClientAccount;

use super::decoy::decoy;
use super::expansion::Roles;
use super::request::{Claim, Issuer};
use super::{Account, AuthFailure, Now, Principal, RequestParts, anonymous, task_credentials, worker_credentials};

/// The client of the operations that test how clients sign. It has no row; the test gives its
/// scopes.
pub struct Tester(Account);

impl Tester {
    pub const CLIENT_ID: &str = "tester";
    const ACCESS_TOKEN: &str = "no-secret";

    #[must_use]
    pub fn new(scopes: Vec<String>) -> Self {
        let access_token = AccessToken::new(Self::ACCESS_TOKEN.to_owned());
        let client =
            ClientAccount { access_token, scopes, disabled: false, expires: None, expired: false, use_is_news: false };
        Self(Account::new(Self::CLIENT_ID, client))
    }

    /// The tester is the only client, and no roles exist.
    pub fn authenticate(&self, request: &RequestParts<'_>, now: Now) -> Result<Principal, AuthFailure> {
        let roles = Arc::new(Resolver::default());
        let Some(claim) = Claim::read(request)? else { return Ok(anonymous(&roles)) };
        match claim.issuer()? {
            Issuer::Client(Self::CLIENT_ID) => claim.check(&self.0, Roles::whole(&roles), request, now),
            Issuer::Client(other) => {
                claim.check_token(&decoy())?;
                Err(AuthFailure::UnknownClient(other.to_owned()))
            }
            Issuer::Tasks => Err(AuthFailure::UnknownClient(task_credentials::ISSUER.to_owned())),
            Issuer::Workers => Err(AuthFailure::UnknownClient(worker_credentials::ISSUER.to_owned())),
        }
    }
}
