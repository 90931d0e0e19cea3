//! The numbers for words in the database, and how statements name them.
//!
//! SQL keeps the numbers: a partial index and a plan need constants, and `query!` checks literals. So that a number
//! cannot mean something else than in its enum, each one in a statement is followed by a comment that names it, and a
//! test compares the two, in all statements of `store/`:
//!
//! - `state = 1 /* State::Unresolved */` is the code of this variant;
//! - `state > 1 /* State: resolved */` compares with all variants at once: the group must be what the comparison is
//!   true for;
//! - `kind IN (3, 4, 5) /* Kind: resolved */` comes after a list, and after `generate_series(0, 6)` for a range;
//! - `0 /* run */` is a plain number; the few words for those are listed in the test.
//!
//! A number without a comment is an error unless its place shows that it is none of these (`LIMIT 1`, `run + 1`,
//! `COALESCE(…, 0)`, `count(*) > 0`). Groups are matches without `_` in the test: a new variant does not compile before
//! its place in each of them is decided. Migrations cannot be edited; `codes/migrations.rs` lists what they compare.

/// An enum for a stored number that has no word on the wire.
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

            /// The variant for a stored number.
            pub fn from_code(code: i16) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

codes! {
    /// `tasks.state`. Whether the last run of an unresolved task is pending or running is not stored here, so that claiming it
    /// does not touch `tasks`.
    State {
        /// No run exists yet.
        Unscheduled = 0,
        /// The last run is in `pending` or in `claims`.
        Unresolved = 1,
        /// The last run was reported as a success.
        Completed = 3,
        /// The last run was reported as a failure.
        Failed = 4,
        /// The last run ended for a reason outside the task.
        Exception = 5,
    }
}

codes! {
    /// `blobs.state`.
    Blob {
        /// The bytes are being uploaded.
        Uploading = 0,
        /// Readers of the name get these bytes.
        Current = 1,
        /// Replaced, deleted, or an abandoned upload.
        Dropped = 2,
    }
}

codes! {
    /// `session_inbox.kind`.
    Item {
        /// A run of the session ended.
        RunEnded = 1,
        /// A command to the worker.
        Command = 2,
        /// A run was given to the session, which may accept it.
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
