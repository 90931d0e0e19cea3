//! What a server remembers of the sessions of workers, and the requests that wait for them. What a session is and how it ends is in
//! [`crate::ops::sessions`].

mod activity;
mod endings;
mod identities;
mod inboxes;
mod outlook;
mod renewals;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::notifiers::Notifiers;
pub use activity::Activity;
pub use endings::{Endings, Watcher};
pub use identities::Identities;
pub use inboxes::{Certainty, Found, Inboxes, WAITERS_MAX};
pub use outlook::Outlook;
pub use renewals::Renewals;

/// What a server has of sessions.
pub struct Sessions {
    pub identities: Identities,
    /// Requests that wait for an item.
    pub inboxes: Inboxes,
    /// Sessions whose end requests wait for.
    pub endings: Endings,
    /// Whether there are any.
    pub activity: Activity,
    /// When they were renewed last.
    pub renewals: Renewals,
    /// When one may expire next.
    pub outlook: Outlook,
}

impl Sessions {
    /// Starts the task that reads inboxes; when it is stopped, all requests that wait are answered.
    #[must_use]
    pub fn start(pool: &PgPool, notifiers: &Notifiers, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        let endings = Endings::default();
        Self {
            inboxes: Inboxes::start(pool.clone(), notifiers, endings.clone(), tasks, stop.clone()),
            identities: Identities::default(),
            activity: Activity::default(),
            outlook: Outlook::default(),
            renewals: Renewals::default(),
            endings,
        }
    }
}
