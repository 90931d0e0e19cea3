//! Advances the low-water marks of this server's queues, and finds runs hidden by them.

use super::{PassReport, clocks};
use crate::batch::continuity_check::ContinuityCheck;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::notifiers::Effects;
use tenure_store::connector::Connector;
use tenure_store::queues::{self, Remembered};

pub struct LowWaterMarksPass {
    /// Database session for both.
    pub continuity_check: ContinuityCheck,
}

impl LowWaterMarksPass {
    pub(super) fn new(connector: &Connector) -> Self {
        Self { continuity_check: ContinuityCheck::new(connector) }
    }

    /// Advances the marks as far as is safe. If the database was replaced, refreshes urgent facts.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let breaks = engine.continuity.breaks();
        let advanced = self.advance(engine).await;
        // Also after an error: the next pass would not notice the break.
        if engine.continuity.breaks() != breaks {
            engine.notifiers.notify_facts();
            // The clock may be another machine's.
            clocks::pass(engine).await?;
        }
        let queues = advanced.map_err(Failure::into_error)?;
        Ok(PassReport { found: queues, done: queues, ..PassReport::default() })
    }

    async fn advance(&self, engine: &Engine) -> Result<usize, Failure> {
        let since = engine.sequencer.epoch();
        let queues = engine.low_water_marks.advance(&self.continuity_check).await?;
        engine.sequencer.note_safe(since, engine.low_water_marks.safe_position());
        engine.due_marks.advance(&self.continuity_check).await?;
        Ok(queues)
    }

    /// Finds claimable runs below low-water marks and drops these marks on every server. Also drops
    /// cached queue keys that the database does not have.
    pub async fn repair(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        drop_stale_keys(engine).await?;
        let sequenced = engine.sequencer.reached();
        let found =
            engine.low_water_marks.repair(&self.continuity_check, sequenced).await.map_err(Failure::into_error)?;
        if found.events {
            tracing::error!("events were below the low-water mark of the event log; they are being added to the log");
            engine.sequencer.drop_all();
        }
        let stranded = found.queues;
        if !stranded.is_empty() {
            tracing::error!(
                queues = stranded.len(),
                "claimable runs were below low-water marks; every server drops the marks of their queues"
            );
            engine.notifiers.apply(Effects::claimable(stranded.iter().copied()));
        }
        Ok(PassReport { found: stranded.len(), done: stranded.len(), ..PassReport::default() })
    }
}

async fn drop_stale_keys(engine: &Engine) -> Result<(), sqlx::Error> {
    let all = engine.queues.list();
    if all.is_empty() {
        return Ok(());
    }
    let remembered: Vec<Remembered<'_>> = all.iter().map(|(key, name)| Remembered { key: *key, name }).collect();
    let stale = queues::list_stale(&mut *engine.background_pool.acquire().await?, &remembered).await?;
    if stale.is_empty() {
        return Ok(());
    }
    tracing::warn!(queues = stale.len(), "the database has lost keys of queues; looking them up again");
    stale.iter().for_each(|&place| engine.queues.drop_key(&all[place].1));
    engine.notifiers.send_away_for_keys();
    Ok(())
}
