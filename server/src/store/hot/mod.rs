//! The coalesced statements: each takes a batch of members as flat arrays and is one autocommit transaction.
//!
//! Rules that all of them keep:
//! - Rows are taken with `FOR UPDATE SKIP LOCKED`; a member whose row is locked is missing from the answer.
//! - Each change is guarded by the state that it expects, so that a member out of turn changes nothing.
//! - The caller sees to it that no two members of a batch name the same task: a transaction does not skip its own locks.
//! - The moment is `tenure_now()`, taken once.

pub mod claim;
pub mod create;
pub mod messages;
pub mod reclaim;
pub mod resolve;

/// The member that an ordinal of `WITH ORDINALITY` stands for, from 0.
fn member(ordinal: i64) -> usize {
    usize::try_from(ordinal - 1).expect("an ordinal starts at 1")
}

/// A count as PostgreSQL's integer.
fn int4(count: usize) -> i32 {
    i32::try_from(count).expect("a batch is limited to far fewer")
}
