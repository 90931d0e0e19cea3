//! Real time, as this process has it: for what clients date, and for what is only shown. Whatever is stored or compared
//! with stored times comes from the database (invariant I3).

use chrono::{DateTime, Utc};

/// What time it is.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place where the process' clock is read")]
pub fn real_now() -> DateTime<Utc> {
    DateTime::<Utc>::from(std::time::SystemTime::now())
}
