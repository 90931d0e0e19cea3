//! The user who runs a command that uses the database, for the audit.

use nix::unistd::{User, geteuid};
use tenure_engine::ops::actor::Actor;

/// Returns `local:` with the user of this process; its number if it has no name.
pub(super) fn local_actor() -> Actor {
    let id = geteuid();
    let user = User::from_uid(id).ok().flatten().map_or_else(|| id.to_string(), |user| user.name);
    Actor::local(&user)
}
