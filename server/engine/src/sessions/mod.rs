//! Cached sessions of workers, and requests that wait for them. [`crate::ops::sessions`] defines
//! sessions and how they end.

mod activity;
mod end_signals;
mod identities;
mod inboxes;
mod outlook;
mod renewals;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::notifiers::Notifiers;
pub use activity::Activity;
pub use end_signals::{EndSignals, EndSubscription};
pub use identities::Identities;
pub use inboxes::{Certainty, InboxAnswer, Inboxes, WAITERS_MAX};
pub use outlook::Outlook;
pub use renewals::Renewals;

pub struct Sessions {
    pub identities: Identities,
    pub inboxes: Inboxes,
    pub end_signals: EndSignals,
    pub activity: Activity,
    pub renewals: Renewals,
    /// When a session may expire next.
    pub outlook: Outlook,
}

impl Sessions {
    /// Starts the task that reads inboxes. After `stop`, waiting requests are answered.
    #[must_use]
    pub fn start(pool: &PgPool, notifiers: &Notifiers, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        let end_signals = EndSignals::default();
        Self {
            inboxes: Inboxes::start(pool.clone(), notifiers, end_signals.clone(), tasks, stop.clone()),
            identities: Identities::default(),
            activity: Activity::default(),
            outlook: Outlook::default(),
            renewals: Renewals::default(),
            end_signals,
        }
    }
}
