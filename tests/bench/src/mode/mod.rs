//! The modes. Each defines its measured steps, the preparation of a lane, and one turn.

mod admission;
mod assign;
mod claim32;
mod create;
mod create_repeat;
mod delete;
mod get;
mod graph;
mod group;
mod idle_pollers;
mod lifecycle;
mod overload;
mod pickup;
mod put_to_visible;
mod reclaim;
mod sessions;
mod shift;
mod status;
mod work;

pub(crate) use admission::Admission;
pub(crate) use assign::Assign;
pub(crate) use claim32::{Claim32, Single32};
pub(crate) use create::{Create, Create100};
pub(crate) use create_repeat::CreateRepeat;
pub(crate) use delete::Delete;
pub(crate) use get::Get;
pub(crate) use graph::Graph;
pub(crate) use group::Group;
pub(crate) use idle_pollers::IdlePollers;
pub(crate) use lifecycle::Lifecycle;
pub(crate) use overload::Overload;
pub(crate) use pickup::Pickup;
pub(crate) use put_to_visible::PutToVisible;
pub(crate) use reclaim::Reclaim;
pub(crate) use sessions::Sessions;
pub(crate) use shift::Shift;
pub(crate) use status::Status;
pub(crate) use work::Work;

use std::rc::Rc;

use super::BenchError;
use super::lane::Lane;
use super::run::Run;

pub(crate) trait Mode: Sized {
    /// Measured steps, in the order of their columns.
    const STEPS: &'static [&'static str];
    const COUNTS: &'static str = "tasks";
    const ON_AZURE: bool = false;

    async fn prepare(lane: &mut Lane) -> Result<Self, BenchError>;

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError>;

    /// True if the lane has turns to make after the window.
    fn has_unfinished(&self, _lane: &Lane) -> bool {
        false
    }

    /// Called after the last turn, to look for lost tasks.
    async fn finish(_run: &Rc<Run>) -> Result<(), BenchError> {
        Ok(())
    }
}
