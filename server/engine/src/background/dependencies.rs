//! Records resolved and unscheduled tasks from the event log, settles the edges between them, and
//! schedules tasks whose dependencies are all satisfied.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::{PASS_MAX, PassReport};
use crate::engine::Engine;
use crate::events::log_reader::{self, Part, Read, Sink};
use crate::notifiers::Effects;
use tenure_store::dependency_work;

const ROWS_MAX: usize = 50;

#[derive(Debug, Clone, Copy)]
pub struct DependencySink;

impl Sink for DependencySink {
    const NAME: &'static str = "dependencies";
    const ROWS_MAX: i64 = ROWS_MAX as i64;
    type Outcome = ();

    async fn act(&mut self, transaction: &mut PgConnection, part: Part) -> Result<(), sqlx::Error> {
        dependency_work::note(transaction, part).await
    }
}

/// Reads the log to about its end at the start of the pass, then settles the work in slices. Each
/// phase stops after [`PASS_MAX`].
pub async fn pass(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    let mut conn = engine.background_pool.acquire().await?;
    let none = dependency_work::skip_log(&mut conn).await?;
    engine.notifiers.expect_dependents(!none);
    if none {
        return Ok(PassReport::default());
    }
    let mut report = PassReport::default();
    let until = Instant::now() + PASS_MAX;
    while Instant::now() < until {
        match log_reader::read_next(&mut conn, &engine.sequencer, &mut DependencySink).await? {
            Read::End => break,
            Read::Rows(rows, ()) => {
                report.found += rows;
                report.done += rows;
                // Newer rows wait for the next pass, so that they cannot keep this one from
                // settling.
                if rows < ROWS_MAX {
                    break;
                }
            }
            // The server that reads also settles, but may have read before the events of our
            // notification.
            Read::Busy => {
                report.lost_race += 1;
                break;
            }
        }
    }
    let until = Instant::now() + PASS_MAX;
    loop {
        let slice = dependency_work::settle(&mut conn, engine.due_marks.get().work).await?;
        report.found += slice.found;
        report.done += slice.settled;
        report.lost_race += slice.found - slice.settled;
        if slice.settled > 0 {
            // Ticks leave dependents to this pass.
            report.next_in = Some(Duration::ZERO);
        }
        if !slice.scheduled.is_empty() {
            let mut effects = Effects::default();
            effects.tasks_scheduled(&slice.scheduled);
            engine.notifiers.apply(effects);
        }
        let more = slice.full && slice.settled > 0;
        if !more || Instant::now() > until {
            return Ok(report);
        }
    }
}
