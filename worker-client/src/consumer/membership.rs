//! The session under which a consumer claims.

use tenure_api::ids::SessionId;

use crate::Client;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// Sessions are disabled, or the server has none.
    Alone,
    /// No claims: the session is missing or cannot be reached.
    Waiting,
    Live(SessionId),
}

impl Membership {
    pub(super) fn session(self) -> Option<SessionId> {
        match self {
            Self::Live(session) => Some(session),
            Self::Alone | Self::Waiting => None,
        }
    }

    pub(super) fn client(self, client: &Client) -> Client {
        self.session().map_or_else(|| client.clone(), |session| client.with_session(session))
    }
}
