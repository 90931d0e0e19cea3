//! The manual clock: getClock, advanceClock.

pub mod advance_clock;
pub mod get_clock;

use crate::http::api::prelude::*;

/// For reading it and for moving it.
const SCOPES: Template = Scope("tenure:clock");

/// What time it is.
#[derive(Serialize, ToSchema)]
struct Now {
    /// The server's time.
    now: Timestamp,
}
