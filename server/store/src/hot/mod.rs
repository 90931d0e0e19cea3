//! What the coalesced statements share, and those of them that move no run: [`messages`]. The others are in
//! [`super::transitions`].
//!
//! A coalesced statement takes a batch of members as flat arrays. It is one autocommit transaction, or one of several
//! statements in that of a [`pipeline`]. All of them keep these rules:
//! - Rows are taken with `FOR UPDATE SKIP LOCKED`; a member whose row is locked is missing from the answer.
//! - Each change is guarded by the state that it expects, so that a member out of turn changes nothing.
//! - The caller sees to it that no two members of a transaction name the same task: a transaction does not skip its own locks.
//! - The time is `tenure_now()`, read once.

mod link;
pub mod messages;
pub mod pipeline;
pub mod statement;

#[cfg(test)]
mod tests;

/// The member of an ordinal of `WITH ORDINALITY`, or of a number that was sent with it, from 0.
pub(super) fn member(ordinal: i64) -> usize {
    usize::try_from(ordinal - 1).expect("an ordinal starts at 1")
}

/// A count as PostgreSQL's integer.
pub(super) fn int4(count: usize) -> i32 {
    i32::try_from(count).expect("a batch is limited to far fewer")
}
