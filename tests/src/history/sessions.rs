//! Records of sessions: calls of their workers, and the state that the server shows at the end.

use std::collections::HashMap;

use tenure_api::ids::SessionId;
use tenure_api::sessions::{Inbox, InboxEvent, Session};
use tenure_api::states::SessionEnd;

use super::record::{Answer, RunKey};

#[derive(Debug, Clone)]
pub struct SessionCall {
    pub queue: usize,
    pub worker: usize,
    pub act: Act,
    /// Upper bound of the server's clock when the answer came, in milliseconds.
    pub clock: i64,
}

#[derive(Debug, Clone)]
pub enum Act {
    Start {
        takeover: bool,
        answer: Answer<Begun>,
    },
    Renew {
        session: SessionId,
        answer: Answer<i64>,
    },
    /// A read of the inbox, which also renews.
    Inbox {
        session: SessionId,
        /// The last item acknowledged; 0 for none.
        after: i64,
        answer: Answer<Items>,
    },
    /// claimWork for the session. The same call is also an
    /// [`Event::ClaimWork`](super::record::Event::ClaimWork).
    Claim {
        session: SessionId,
        answer: Answer<Vec<RunKey>>,
    },
    Command {
        session: SessionId,
        answer: Answer<i64>,
    },
    /// A command for a task of which the session has claimed a run.
    TaskCommand {
        session: SessionId,
        run: RunKey,
        answer: Answer<i64>,
    },
    /// The end of a session by `DELETE`.
    Close {
        session: SessionId,
        /// Number of returned runs.
        answer: Answer<i64>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    pub session: SessionId,
    /// Greater than the epoch of each earlier session.
    pub epoch: i64,
    /// In milliseconds.
    pub expires: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Items {
    pub expires: i64,
    pub items: Vec<(i64, Item)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    RunEnded(RunKey, String, String),
    Command,
    TaskCommand(RunKey),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Expiry, in milliseconds; of an ended session, the expiry it would have had.
    pub expires: i64,
    pub running: i64,
    /// When it ended, in milliseconds, and why.
    pub ended: Option<(i64, SessionEnd)>,
}

pub type ShownSessions = HashMap<SessionId, Shown>;

impl Act {
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Start { answer, .. } => answer.done().map(|begun| begun.session),
            Self::Renew { session, .. }
            | Self::Inbox { session, .. }
            | Self::Claim { session, .. }
            | Self::Command { session, .. }
            | Self::TaskCommand { session, .. }
            | Self::Close { session, .. } => Some(*session),
        }
    }

    #[must_use]
    pub fn refused(&self) -> Option<u16> {
        fn status<T>(answer: &Answer<T>) -> Option<u16> {
            match answer {
                Answer::Refused(status) => Some(*status),
                Answer::Done(_) | Answer::Unknown => None,
            }
        }
        match self {
            Self::Start { answer, .. } => status(answer),
            Self::Renew { answer, .. }
            | Self::Command { answer, .. }
            | Self::TaskCommand { answer, .. }
            | Self::Close { answer, .. } => status(answer),
            Self::Inbox { answer, .. } => status(answer),
            Self::Claim { answer, .. } => status(answer),
        }
    }

    #[must_use]
    pub fn expires(&self) -> Option<i64> {
        match self {
            Self::Start { answer, .. } => answer.done().map(|begun| begun.expires),
            Self::Renew { answer, .. } => answer.done().copied(),
            Self::Inbox { answer, .. } => answer.done().map(|items| items.expires),
            Self::Claim { .. } | Self::Command { .. } | Self::TaskCommand { .. } | Self::Close { .. } => None,
        }
    }

    /// Makes the answer unknown, after a loss of the end of the database's log. Unlike other
    /// refusals, "session ended" is doubtful too, because the end may be lost.
    pub(super) fn doubt(&mut self) {
        match self {
            Self::Start { answer, .. } => *answer = Answer::Unknown,
            Self::Renew { answer, .. }
            | Self::Command { answer, .. }
            | Self::TaskCommand { answer, .. }
            | Self::Close { answer, .. } => *answer = Answer::Unknown,
            Self::Inbox { answer, .. } => *answer = Answer::Unknown,
            Self::Claim { answer, .. } => *answer = Answer::Unknown,
        }
    }
}

impl From<Inbox> for Items {
    fn from(inbox: Inbox) -> Self {
        let item = |what| match what {
            InboxEvent::RunEnded { task_id, run_id, state, reason_resolved, .. } => {
                Item::RunEnded((task_id, run_id.number()), state.to_string(), reason_resolved.to_string())
            }
            InboxEvent::TaskCommand { task_id, run_id, .. } => Item::TaskCommand((task_id, run_id.number())),
            // No queue of the history assigns runs.
            InboxEvent::Command { .. } | InboxEvent::Assigned { .. } => Item::Command,
        };
        let items = inbox.items.into_iter().map(|answered| (answered.id, item(answered.what))).collect();
        Self { expires: inbox.expires.time().timestamp_millis(), items }
    }
}

impl From<Session> for Shown {
    fn from(session: Session) -> Self {
        let ended = session.ended.map(|ended| ended.time().timestamp_millis()).zip(session.ended_by);
        Self { expires: session.expires.time().timestamp_millis(), running: session.running, ended }
    }
}
