//! Late results: the report of a run that was taken from its worker gets a run of its own, made
//! after the open run was superseded.

use crate::history::snapshot::{Run, Status};

pub(super) const SUPERSEDED: &str = "superseded";
/// `reasonCreated` of a run that was made for a late result.
const MADE: &str = "exception";

pub(super) fn is_superseded(run: &Run) -> bool {
    run.reason_resolved.as_deref() == Some(SUPERSEDED)
}

fn is_made(run: &Run) -> bool {
    run.state == "completed" && run.reason_created == MADE
}

/// Returns the run whose late result a run is: it has the same claim.
pub(super) fn origin<'a>(status: &'a Status, made: &Run) -> Option<&'a Run> {
    let is_origin = |run: &&Run| {
        run.run_id < made.run_id
            && run.reason_resolved.as_deref() == Some("claim-expired")
            && (&run.worker_id, run.started) == (&made.worker_id, made.started)
    };
    status.runs.iter().filter(|_| is_made(made)).find(is_origin)
}

/// Returns the run that was made for the late result of a run.
pub(super) fn made_for(status: &Status, run: u16) -> Option<&Run> {
    status.runs.iter().find(|made| origin(status, made).is_some_and(|origin| origin.run_id == run))
}

/// True if a run was made for the late result of an earlier run, and the run before it was
/// superseded.
pub(super) fn follows(superseded: &Run, made: &Run) -> bool {
    is_superseded(superseded) && is_made(made)
}
