//! Groups. Finds the groups in which tasks were resolved, part by part of the event log, and publishes the resolution of
//! those that have no unresolved task left.

use sqlx::PgConnection;

use super::PassReport;
use crate::engine::Engine;
use crate::events::log_reader::{self, Part, Read, Sink};
use tenure_store::events::Sequenced;
use tenure_store::groups::{self, Slice, Witnesses};
use tenure_store::memory::Memory;

/// Unresolved tasks that are cached, one for each group, so that checking a large group is cheap. Nothing is lost when they
/// are dropped.
const WITNESSES_MAX: usize = 100_000;

/// Parts of the log that one run of the pass reads: while it lags, events and expired tasks are retained.
const PARTS_MAX: usize = 50;

/// Publishes the groups that a part of the log resolves.
#[derive(Debug)]
pub struct GroupSink<'a> {
    /// What need not be looked through for resolutions without a position.
    pub sequenced: Sequenced,
    /// The task of each group that is checked first.
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

/// Publishes the resolution of groups.
pub struct GroupsPass {
    witnesses: Memory<Witnesses>,
}

impl GroupsPass {
    /// Registers its cache at the engine.
    pub(super) fn new(engine: &Engine) -> Self {
        let pass = Self { witnesses: Memory::default() };
        let witnesses = pass.witnesses.clone();
        engine.remembered.add("unresolved tasks of groups", move || witnesses.drop_all());
        pass
    }

    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let mut conn = engine.background_pool.acquire().await?;
        let since = self.witnesses.epoch();
        // Taken out: if the pass fails, or another one runs meanwhile, only the cache is lost.
        let mut witnesses = self.witnesses.note(since, std::mem::take).unwrap_or_default();
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
        self.witnesses.note(since, |cached| cached.extend(witnesses));
        Ok(report)
    }
}
