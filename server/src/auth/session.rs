//! Sessions of the web interface. A visitor who proves a client's access token gets a ticket, and
//! acts as that client until it expires.
//!
//! A ticket is signed and not stored: every server accepts it. It is bound to the client and its
//! token. If the client is deleted, disabled or expired, or its token is reset, the session ends
//! within a second, when the cache reads the client again.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use std::time::Duration;
use tenure_api::credentials::{AccessToken, SigningKey, Tag, seed};

use super::{AuthError, Authenticator, Now, Principal, RequestParts};
use tenure_store::secrets::{Purpose, SecretKeys, random};

pub const SESSION_LIFETIME: Duration = Duration::from_hours(12);
/// In bytes; a client id of 255 characters makes a ticket of about 500.
const TICKET_MAX: usize = 1_024;

#[derive(Clone)]
pub struct Session {
    pub principal: Principal,
    /// The value of the cookie.
    pub ticket: String,
    /// Sent by the session's forms, against cross-site request forgery.
    pub form_token: Tag,
}

pub(super) struct Tickets {
    /// The first one signs, all verify; never empty.
    keys: Vec<SigningKey>,
}

impl Tickets {
    pub(super) fn new(keys: &SecretKeys) -> Self {
        Self { keys: keys.signing_keys(Purpose::PageSessions) }
    }

    fn issue(&self, client_id: &str, token: &AccessToken, now_ms: i64) -> String {
        let key = &self.keys[0];
        let lifetime = i64::try_from(SESSION_LIFETIME.as_millis()).unwrap_or_default();
        let id = URL_SAFE_NO_PAD.encode(client_id);
        let signed =
            format!("{id}.{}.{}.{}", seed(random()), now_ms + lifetime, bound_to(key, client_id, token).as_str());
        let signature = key.sign(&signed);
        format!("{signed}.{}", signature.as_str())
    }

    /// Returns none unless one of the keys signed the ticket and it is valid.
    fn read<'a>(&'a self, ticket: &'a str, now_ms: i64) -> Option<Ticket<'a>> {
        let (signed, signature) = ticket.rsplit_once('.').filter(|_| ticket.len() <= TICKET_MAX)?;
        let key = self.keys.iter().find(|key| key.sign(signed).matches(signature))?;
        let parts: Vec<&str> = signed.split('.').collect();
        let [id, _, ends_ms, binding] = parts.as_slice() else { return None };
        let client_id = String::from_utf8(URL_SAFE_NO_PAD.decode(id).ok()?).ok()?;
        let ends_ms: i64 = ends_ms.parse().ok()?;
        (now_ms < ends_ms).then_some(Ticket { client_id, binding, key })
    }
}

struct Ticket<'a> {
    client_id: String,
    binding: &'a str,
    key: &'a SigningKey,
}

/// Does not reveal the token.
fn bound_to(key: &SigningKey, client_id: &str, token: &AccessToken) -> Tag {
    key.sign(&format!("token of {client_id}\n{}", token.expose()))
}

fn form_token(key: &SigningKey, ticket: &str) -> Tag {
    key.sign(&format!("form of {ticket}"))
}

impl Authenticator {
    /// Under the rules of HTTP Basic.
    pub async fn log_in(&self, client_id: &str, token: &str, now: Now) -> Result<Session, AuthError> {
        let principal = self.authenticate_basic(client_id, token, now).await?;
        // As in the header, a colon in the typed token belongs to the id.
        let client_id = principal.client_id.clone().unwrap_or_default();
        let account = self.account(&client_id).await?;
        let ticket = self.tickets.issue(&client_id, &account.token, now.server_ms);
        let form_token = form_token(&self.tickets.keys[0], &ticket);
        Ok(Session { principal, ticket, form_token })
    }

    /// Returns none if the ticket is invalid or its client may no longer log in.
    pub async fn resume(&self, ticket: &str, now: Now) -> Result<Option<Session>, AuthError> {
        let Some(read) = self.tickets.read(ticket, now.server_ms) else { return Ok(None) };
        let account = match self.account(&read.client_id).await {
            Ok(account) => account,
            Err(AuthError::Failure(_)) => return Ok(None),
            Err(error @ AuthError::Lookup(_)) => return Err(error),
        };
        if !bound_to(read.key, &read.client_id, &account.token).matches(read.binding) {
            return Ok(None);
        }
        let form_token = form_token(read.key, ticket);
        match self.authenticate_basic(&read.client_id, account.token.expose(), now).await {
            Ok(principal) => Ok(Some(Session { principal, ticket: ticket.to_owned(), form_token })),
            Err(AuthError::Failure(_)) => Ok(None),
            Err(error @ AuthError::Lookup(_)) => Err(error),
        }
    }

    async fn authenticate_basic(&self, client_id: &str, token: &str, now: Now) -> Result<Principal, AuthError> {
        let header = format!("Basic {}", STANDARD.encode(format!("{client_id}:{token}")));
        let request = RequestParts { authorization: Some(&header), ..RequestParts::default() };
        self.authenticate(&request, now).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=";
    const NOW: i64 = 1_700_000_000_000;

    fn tickets(setting: &str) -> Tickets {
        Tickets::new(&SecretKeys::parse(setting).unwrap())
    }

    fn token() -> AccessToken {
        AccessToken::new("hush".to_owned())
    }

    #[test]
    fn ticket_is_valid_for_its_client_for_twelve_hours() {
        let tickets = tickets(OLD);
        let ticket = tickets.issue("a.b/c:d", &token(), NOW);
        let read = tickets.read(&ticket, NOW).unwrap();
        assert_eq!(read.client_id, "a.b/c:d");
        assert!(bound_to(read.key, "a.b/c:d", &token()).matches(read.binding));
        assert!(!bound_to(read.key, "a.b/c:d", &AccessToken::new("new".to_owned())).matches(read.binding));
        let hours = |hours: i64| NOW + hours * 3_600_000;
        assert!(tickets.read(&ticket, hours(12) - 1).is_some() && tickets.read(&ticket, hours(12)).is_none());
        assert!(!ticket.contains("hush"));
    }

    #[test]
    fn changed_ticket_is_refused() {
        let tickets = tickets(OLD);
        let ticket = tickets.issue("ci", &token(), NOW);
        let parts: Vec<&str> = ticket.split('.').collect();
        let other = URL_SAFE_NO_PAD.encode("root");
        for (index, new) in [(0, other.as_str()), (1, "x"), (2, "9999999999999"), (3, "x"), (4, ""), (4, "x")] {
            let mut changed = parts.clone();
            changed[index] = new;
            assert!(tickets.read(&changed.join("."), NOW).is_none(), "{index} {new}");
        }
        for bad in ["", ".", "....", "a.b.c", &"x".repeat(TICKET_MAX + 1)] {
            assert!(tickets.read(bad, NOW).is_none(), "{bad}");
        }
    }

    #[test]
    fn first_key_signs_and_every_key_verifies() {
        let rotated = tickets(&format!("{NEW},{OLD}"));
        assert!(rotated.read(&tickets(OLD).issue("ci", &token(), NOW), NOW).is_some());
        let ticket = rotated.issue("ci", &token(), NOW);
        assert!(tickets(NEW).read(&ticket, NOW).is_some() && tickets(OLD).read(&ticket, NOW).is_none());
    }
}
