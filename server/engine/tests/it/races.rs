//! Races, made deterministic by locks that the test holds.

mod claiming;
mod events;
mod guards;
mod locks;
mod lost_answers;
mod low_water_marks;
mod same_task;
mod slow_creates;
