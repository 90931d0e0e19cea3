//! The manual clock: getClock, advanceClock.

pub mod advance_clock;
pub mod get_clock;

use serde::Serialize;
use tenure_api::dates::Timestamp;
use utoipa::ToSchema;

use crate::http::scopes::Template::{self, Scope};

/// For reading it and for moving it.
const SCOPES: Template = Scope("tenure:clock");

/// What time it is.
#[derive(Serialize, ToSchema)]
struct Now {
    /// The server's time.
    now: Timestamp,
}
