//! What is written down about sessions: the calls of workers that have one, and what the server says of each session in the end.

use std::collections::HashMap;

use tenure_api::ids::SessionId;
use tenure_api::sessions::{Inbox, InboxEvent, Session};
use tenure_api::states::SessionEnd;

use super::record::{Answer, RunKey};

/// A call of a worker for its session.
#[derive(Debug, Clone)]
pub struct SessionCall {
    /// Number of the session's queue.
    pub queue: usize,
    /// The worker.
    pub worker: usize,
    /// What was called, and what it answered.
    pub act: Act,
    /// The server's clock showed no later time when the answer came, in milliseconds.
    pub clock: i64,
}

/// What was called.
#[derive(Debug, Clone)]
pub enum Act {
    /// A new session.
    Start {
        /// Whether it ends the worker's live one.
        takeover: bool,
        /// What began.
        answer: Answer<Begun>,
    },
    /// A renewal.
    Renew {
        /// The session.
        session: SessionId,
        /// Until when it is live, in milliseconds.
        answer: Answer<i64>,
    },
    /// The inbox, which renews too.
    Inbox {
        /// The session.
        session: SessionId,
        /// The last item that is acknowledged; 0: none.
        after: i64,
        /// What the inbox has.
        answer: Answer<Items>,
    },
    /// claimWork in the name of the session. The same call is also an [`Event::ClaimWork`](super::record::Event::ClaimWork).
    Claim {
        /// The session.
        session: SessionId,
        /// The runs that were handed out.
        answer: Answer<Vec<RunKey>>,
    },
    /// A command for the worker.
    Command {
        /// The session.
        session: SessionId,
        /// The item's id.
        answer: Answer<i64>,
    },
    /// A command for a task of which the session has claimed a run.
    TaskCommand {
        /// The session.
        session: SessionId,
        /// The run.
        run: RunKey,
        /// The command's id.
        answer: Answer<i64>,
    },
    /// `DELETE`.
    Close {
        /// The session.
        session: SessionId,
        /// How many runs left it.
        answer: Answer<i64>,
    },
}

/// A session that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// Its id.
    pub session: SessionId,
    /// Greater than that of each earlier one.
    pub epoch: i64,
    /// Until when it is live, in milliseconds.
    pub expires: i64,
}

/// An answer of an inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Items {
    /// Until when the session is live, in milliseconds.
    pub expires: i64,
    /// The items by their ids.
    pub items: Vec<(i64, Item)>,
}

/// An item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A run ended: its state, and why.
    RunEnded(RunKey, String, String),
    /// A command.
    Command,
    /// A command for the task of this run.
    TaskCommand(RunKey),
}

/// What the server says of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Until when it is live, or would have been, in milliseconds.
    pub expires: i64,
    /// How many runs it holds.
    pub running: i64,
    /// When it ended, in milliseconds, and by what.
    pub ended: Option<(i64, SessionEnd)>,
}

/// What the server says of all sessions.
pub type ShownSessions = HashMap<SessionId, Shown>;

impl Act {
    /// The session, if its id is known.
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

    /// The status of a refusal.
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

    /// Until when the session is live by this answer, in milliseconds.
    #[must_use]
    pub fn expires(&self) -> Option<i64> {
        match self {
            Self::Start { answer, .. } => answer.done().map(|begun| begun.expires),
            Self::Renew { answer, .. } => answer.done().copied(),
            Self::Inbox { answer, .. } => answer.done().map(|items| items.expires),
            Self::Claim { .. } | Self::Command { .. } | Self::TaskCommand { .. } | Self::Close { .. } => None,
        }
    }

    /// Makes it unknown what was done, for an answer at a time whose end of the database's log was lost. Unlike other refusals, one
    /// that says that the session has ended is doubtful too: that end may have been lost.
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
