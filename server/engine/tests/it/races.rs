//! Races, made deterministic by locks that the test holds.

mod before_the_lock;
mod claiming;
mod endings;
mod events;
mod guards;
mod holds;
mod interleavings;
mod late_results;
mod left_out;
mod live_logs;
mod locks;
mod lost_answers;
mod low_water_marks;
mod retried_failures;
mod same_effect;
mod same_task;
mod slow_creates;
