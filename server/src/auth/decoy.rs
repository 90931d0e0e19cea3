//! The stand-in for a client that does not exist.

use tenure_api::credentials::AccessToken;
use tenure_store::clients::ClientAccount;
use tenure_store::secrets::random;

use super::Account;

/// No client can have it.
const ID: &str = "";

/// An account whose token no caller has, and which may not come in: a claim that is checked against it is refused as one
/// with a wrong token is, and as slowly.
pub(super) fn decoy() -> Account {
    let client = ClientAccount {
        access_token: AccessToken::from_random(random()),
        scopes: Vec::new(),
        disabled: true,
        expires: None,
        expired: false,
        use_is_news: false,
    };
    Account::new(ID, client)
}

impl Account {
    /// Whether it stands for a client that does not exist.
    pub(super) fn is_decoy(&self) -> bool {
        self.client_id == ID
    }
}
