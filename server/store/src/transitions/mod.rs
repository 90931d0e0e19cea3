//! Every statement that moves a run, one file for each transition. Nothing else inserts into, updates or deletes from
//! `tasks`, `claims` and `runs`, or inserts into and deletes from `pending`; a test of [`super::codes`] holds the rest
//! of `store/` to that. (Messages are columns of `pending`: [`super::hot::messages`] and [`super::messages`] update
//! those, which moves no run.)
//!
//! | transition | from → to | file | statement | called by |
//! |---|---|---|---|---|
//! | create | – → pending, or unscheduled while a dependency is unsatisfied | [`create`] | `create_task`, `create_task_alone`, `create_task_of_one` (hot) | `ops::create_task`, `ops::submit` |
//! | claim | pending → running | [`claim`] | `claim_work`, `claim_work_of_one` (hot) | `batch::wait_list`, for claimWork |
//! | claim in a limited queue | waiting → running | [`claim`] | `claim_decided` | `batch::limited`, for claimWork; `ops::claim_task` |
//! | claim one | pending → running | [`claim_one`] | `claim_task` | `ops::claim_task` |
//! | renew | running → running, with a later end of the claim | [`renew`] | `reclaim_task` (hot) | `ops::reclaim` |
//! | limit | running → running, with a time at which the claim is over | [`limit`] | `set_complete_by` | `background::reassign` |
//! | end | running → resolved, or → pending as the next run | [`end`](mod@end) | `resolve_run`, `resolve_run_for_good`, `resolve_run_of_one` (hot) | `ops::report`, `ops::worker_removed`, `ops::sessions`, `background::claims`, `batch::delivery` |
//! | end open | unscheduled, pending, running → resolved, as an exception | [`end_open`] | `end_open` | `ops::change_task` and `ops::task_group` (cancel), `store::deadlines` |
//! | schedule | unscheduled → pending | [`schedule`] | `schedule_tasks` | `ops::change_task`, `store::dependency_work` |
//! | end hold | pending and held → pending and ready | [`end_hold`] | `end_holds`, `end_commanded_delay` | `background::holds`, `ops::task_command` |
//! | restamp | pending, running → the same, with the traits of another policy | [`restamp`] | `restamp_runs` | `store::refile` |
//! | rerun | resolved, unscheduled → pending, as a new run | [`rerun`] | `rerun_task` | `ops::change_task` |
//! | reprioritise | unscheduled, pending, running → the same, with another priority | [`reprioritise`] | `change_priority` | `ops::change_priority` |
//! | lone group | – ; the group of a lone task gets a row | [`lone_group`] | `store_lone_group` | `store::groups` (seal) |
//! | purge | resolved → – | [`purge`] | `purge_tasks` | `background::expiry` |
//!
//! The same by edge, where one edge has several statements:
//!
//! - **A task becomes resolved** in two statements. `resolve_run` ends a run that a worker holds: it never waits for a
//!   lock, ends many at once, and decides by [`Ending`](tenure_domain::policy::ending::Ending) whether another run follows.
//!   `end_open` ends a task wherever it is, and nothing follows; its caller has locked the tasks, because a pending run
//!   and an unscheduled task have no claim that could be found and skipped.
//! - **A run becomes claimable** in six: `create_task` and `schedule_tasks` make the first run, `resolve_run` the next
//!   one, `rerun_task` one after the last; `end_holds` and `end_commanded_delay` let go of one that was made held. Only the next run after an
//!   undelivered claim keeps its place in the queue.
//! - **A resolved task is open again** in one: `rerun_task`.
//! - **A run is claimed** in two: `claim_work` picks among what is pending and leaves `tasks` alone; `claim_task` takes
//!   one named run of a task that its caller has locked.
//!
//! The hot statements keep the rules of [`super::hot`]. The others are parts of ordinary transactions: their callers
//! have locked the tasks, sorted by id (see the lock order in ARCHITECTURE.md). A statement that changes what is
//! counted, or what readers of events are to know, writes the counts and the event itself (invariants I4 and I5). Each
//! is held against [`domain::policy::life::apply`](tenure_domain::policy::life::apply) by `server/tests/it/races/guards.rs`.

pub mod claim;
pub mod claim_one;
pub mod create;
pub mod end;
pub mod end_hold;
pub mod end_open;
pub mod limit;
pub mod lone_group;
pub mod purge;
pub mod renew;
pub mod reprioritise;
pub mod rerun;
pub mod restamp;
pub mod schedule;
