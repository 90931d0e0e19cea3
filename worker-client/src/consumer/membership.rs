//! The session under which a consumer claims.

use tenure_api::ids::SessionId;

use crate::Client;

/// How tasks are currently claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// Without a session: it is disabled, or the server has none.
    Alone,
    /// Not at all: there is no session, or it cannot be reached.
    Waiting,
    /// With this session.
    Live(SessionId),
}

impl Membership {
    pub(super) fn session(self) -> Option<SessionId> {
        match self {
            Self::Live(session) => Some(session),
            Self::Alone | Self::Waiting => None,
        }
    }

    /// Returns the client for such claims.
    pub(super) fn client(self, client: &Client) -> Client {
        self.session().map_or_else(|| client.clone(), |session| client.with_session(session))
    }
}
