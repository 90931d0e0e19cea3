//! The terms on which a consumer claims.

use tenure_api::ids::SessionId;

use crate::Client;

/// On which terms tasks are claimed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// Without a session: the consumer is to have none, or the server has none.
    Alone,
    /// There is no session now, or it cannot be reached.
    Waiting,
    /// By this session.
    Live(SessionId),
}

impl Membership {
    pub(super) fn session(self) -> Option<SessionId> {
        match self {
            Self::Live(session) => Some(session),
            Self::Alone | Self::Waiting => None,
        }
    }

    /// The client for claims on these terms.
    pub(super) fn client(self, client: &Client) -> Client {
        self.session().map_or_else(|| client.clone(), |session| client.with_session(session))
    }
}
