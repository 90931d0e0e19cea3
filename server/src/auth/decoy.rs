//! A placeholder account for unknown clients.

use tenure_api::credentials::AccessToken;
use tenure_store::clients::ClientAccount;
use tenure_store::secrets::random;

use super::Account;

/// Not a valid client id.
const ID: &str = "";

/// A disabled account with a random token. Claims against it are refused like a wrong token, after
/// the same time.
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
    pub(super) fn is_decoy(&self) -> bool {
        self.client_id == ID
    }
}
