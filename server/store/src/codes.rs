//! Codes in the database, and their names in statements.
//!
//! SQL needs literal codes: partial indexes and plans need constants, and `query!` checks literals.
//! A comment after each code names its meaning, and a test compares both with the enums:
//!
//! - `state = 1 /* State::Unresolved */` is the code of a variant;
//! - `state > 1 /* State: resolved */` compares with all variants: the group must be those for
//!   which it is true;
//! - `kind IN (3, 4, 5) /* Kind: resolved */` follows a list, or `generate_series(0, 6)` for a
//!   range;
//! - `0 /* run */` is a plain number; the test lists the words for these.
//!
//! A number needs a comment unless its context shows that it is no code (`LIMIT 1`, `run + 1`,
//! `COALESCE(…, 0)`, `count(*) > 0`). In the test, groups are matches without `_`: a new variant
//! does not compile until it is added to each. Migrations cannot be edited; `codes/migrations.rs`
//! lists their comparisons.

/// Declares an enum for a stored code that has no name on the wire.
macro_rules! codes {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $vdoc:literal])* $variant:ident = $code:literal),+ $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[doc = $vdoc])* $variant),+ }

        impl $name {
            #[must_use]
            pub fn code(self) -> i16 {
                match self { $(Self::$variant => $code),+ }
            }

            pub fn from_code(code: i16) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

codes! {
    /// `tasks.state`. It does not distinguish pending from running, so that claims do not touch
    /// `tasks`.
    State {
        /// No run exists yet.
        Unscheduled = 0,
        /// The last run is in `pending` or in `claims`.
        Unresolved = 1,
        Completed = 3,
        Failed = 4,
        /// The last run ended for a reason outside the task.
        Exception = 5,
    }
}

codes! {
    /// `blobs.state`.
    Blob {
        Uploading = 0,
        /// Readers get these bytes.
        Current = 1,
        /// Replaced, deleted, or an abandoned upload.
        Dropped = 2,
    }
}

codes! {
    /// `session_inbox.kind`.
    Item {
        RunEnded = 1,
        Command = 2,
        /// A run was given to the session to accept.
        Assigned = 4,
        /// A command for a task whose run the session holds.
        TaskCommand = 5,
    }
}

#[cfg(test)]
mod check;
#[cfg(test)]
mod lexer;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod tests;
