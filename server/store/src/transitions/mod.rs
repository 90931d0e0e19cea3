//! Statements that move a run, one file for each transition.
//!
//! Nothing else inserts into, updates or deletes from `tasks`, `claims` and `runs`, or inserts into
//! and deletes from `pending`, as a test of [`super::codes`] checks. (Messages are columns of
//! `pending`, which [`super::hot::messages`] and [`super::messages`] update.)
//!
//! | file | from → to | statements |
//! |---|---|---|
//! | [`create`] | new → pending, or unscheduled with open dependencies | `create_task…`, `create_dependent_task` (hot) |
//! | [`claim`] | pending → running | `claim_work…` (hot) |
//! | [`claim`] | waiting → running, in a limited queue | `claim_decided` |
//! | [`claim`] | pending → running, of a share of a partition group | `claim_work_of_share` |
//! | [`claim_one`] | pending → running | `claim_task` |
//! | [`renew`] | running → running, with a later lease | `reclaim_task` (hot) |
//! | [`limit`] | running → running, with a time limit | `set_complete_by` |
//! | [`end`](mod@end) | running → resolved, or pending as the next run | `resolve_run…` (hot) |
//! | [`end_open`] | unscheduled, pending, running → exception | `end_open` |
//! | [`late`] | pending, running → exception, and a new run → completed | `record_late_result` |
//! | [`schedule`] | unscheduled → pending | `schedule_tasks`, `schedule_dependents` (hot) |
//! | [`end_hold`] | held → ready or waiting | `end_holds`, `end_commanded_delay` |
//! | [`restamp`] | pending, running → same, with new traits | `restamp_runs`, `rekey_runs` |
//! | [`rerun`] | resolved, unscheduled → pending, as a new run | `rerun_task` |
//! | [`reprioritise`] | any open state → same, with another priority | `change_priority` |
//! | [`lone_group`] | no move; the group of a lone task gets a row | `store_lone_group` |
//! | [`purge`] | resolved → deleted | `purge_tasks` |
//!
//! `resolve_run`, `end_open` and `record_late_result` resolve tasks. The first ends claimed runs without waiting for
//! locks, and [`Ending`](tenure_domain::policy::ending::Ending) decides if another run follows. The
//! second ends a task in any open state, and no run follows. Its caller locks the tasks, because
//! pending runs and unscheduled tasks have no claim row to skip. The third resolves a task by the
//! report of an earlier run.
//!
//! Seven make a run claimable: `create_task`, `schedule_tasks` and `schedule_dependents` (first
//! run), `resolve_run` (next run), `rerun_task`, `end_holds` and `end_commanded_delay`. Only the
//! next run after an undelivered claim keeps its position.
//!
//! Hot statements follow the rules of [`super::hot`]. The callers of the others lock the tasks in
//! order of id (see ARCHITECTURE.md). A statement that changes counts, or that event readers must
//! learn of, writes counts and event itself (invariants I4 and I5).
//! `server/tests/it/races/guards.rs` compares each statement with
//! [`domain::policy::life::apply`](tenure_domain::policy::life::apply).

pub mod claim;
pub mod claim_one;
pub mod create;
pub mod end;
pub mod end_hold;
pub mod end_open;
pub mod late;
pub mod limit;
pub mod lone_group;
pub mod purge;
pub mod renew;
pub mod reprioritise;
pub mod rerun;
pub mod restamp;
pub mod schedule;
