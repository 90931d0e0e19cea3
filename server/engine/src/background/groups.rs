//! Publishes the resolution of groups whose last task was resolved, according to the event log, and
//! files resolved tasks for their purge.

use sqlx::PgConnection;

use super::PassReport;
use crate::engine::Engine;
use crate::events::log_reader::{self, Part, Read, Sink};
use tenure_store::cached::Cached;
use tenure_store::events::Sequenced;
use tenure_store::groups::{self, Slice, Witnesses};

/// Cached unresolved tasks, one per group, which make checks of large groups cheap. Clearing them
/// is harmless.
const WITNESSES_MAX: usize = 100_000;

/// Per run: a lagging pass retains events and expired tasks.
const PARTS_MAX: usize = 50;

#[derive(Debug)]
pub struct GroupSink<'a> {
    /// No resolutions without a position precede this.
    pub sequenced: Sequenced,
    /// Cached task of each group, checked first.
    pub witnesses: &'a mut Witnesses,
}

impl Sink for GroupSink<'_> {
    const NAME: &'static str = "groups";
    const ROWS_MAX: i64 = 200;
    type Outcome = Slice;

    async fn act(&mut self, transaction: &mut PgConnection, part: Part) -> Result<Slice, sqlx::Error> {
        groups::publish_resolved(transaction, part, self.sequenced, self.witnesses).await
    }
}

pub struct GroupsPass {
    witnesses: Cached<Witnesses>,
}

impl GroupsPass {
    pub(super) fn new(engine: &Engine) -> Self {
        let pass = Self { witnesses: Cached::default() };
        let witnesses = pass.witnesses.clone();
        engine.remembered.add("unresolved tasks of groups", move || witnesses.drop_all());
        pass
    }

    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let mut conn = engine.background_pool.acquire().await?;
        let since = self.witnesses.epoch();
        // On failure or an overlapping run, only the cache is lost.
        let mut witnesses = self.witnesses.update(since, std::mem::take).unwrap_or_default();
        if witnesses.len() > WITNESSES_MAX {
            witnesses.clear();
        }
        let mut report = PassReport::default();
        for _ in 0..PARTS_MAX {
            let sequenced = engine.sequencer.reached();
            let mut sink = GroupSink { sequenced, witnesses: &mut witnesses };
            match log_reader::read_next(&mut conn, &engine.sequencer, &mut sink).await? {
                Read::Busy => report.lost_race += 1,
                Read::End => {}
                Read::Rows(rows, _) => {
                    report.found += rows;
                    report.done += rows;
                    if rows as i64 == GroupSink::ROWS_MAX {
                        continue;
                    }
                }
            }
            break;
        }
        self.witnesses.update(since, |cached| cached.extend(witnesses));
        Ok(report)
    }
}
