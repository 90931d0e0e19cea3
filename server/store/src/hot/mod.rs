//! Shared parts of coalesced statements, and [`messages`], which move no run. The others are in
//! [`super::transitions`].
//!
//! A coalesced statement takes a batch of members as flat arrays. It is an autocommit transaction,
//! or shares one in a [`pipeline`]. Rules:
//!
//! - Rows are locked with `FOR UPDATE SKIP LOCKED`; the result omits members with locked rows.
//! - Each change is guarded by the expected state, so a late member changes nothing.
//! - The caller ensures that no two members of a transaction name the same task: a transaction does
//!   not skip its own locks.
//! - The time is `tenure_now()`, read once.

pub(crate) mod link;
pub mod messages;
pub mod pipeline;
pub mod statement;

#[cfg(test)]
mod tests;

/// Converts an ordinal to the index of a member.
pub(super) fn member(ordinal: i64) -> usize {
    usize::try_from(ordinal - 1).expect("an ordinal starts at 1")
}

pub(super) fn int4(count: usize) -> i32 {
    i32::try_from(count).expect("a batch is limited to far fewer")
}
