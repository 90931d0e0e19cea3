//! Advances the low-water marks of the queues that this server claims from, and looks for runs that they hide.

use super::{PassReport, clocks};
use crate::batch::watch::DatabaseWatch;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::notifiers::Effects;
use tenure_store::connector::Connector;
use tenure_store::queues::{self, Remembered};

/// Advances low-water marks, and repairs them.
pub struct LowWaterMarksPass {
    /// The session of both.
    pub watch: DatabaseWatch,
}

impl LowWaterMarksPass {
    /// Watches the database of this connector.
    pub(super) fn new(connector: &Connector) -> Self {
        Self { watch: DatabaseWatch::new(connector) }
    }

    /// Advances the marks as far as is safe. If the database was replaced, what cannot wait is read at once.
    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        let breaks = engine.continuity.breaks();
        let advanced = self.advance(engine).await;
        // Also if that failed: the next pass knows of no break.
        if engine.continuity.breaks() != breaks {
            engine.notifiers.notify_facts();
            // The clock may be that of another machine.
            clocks::pass(engine).await?;
        }
        let queues = advanced.map_err(Failure::into_error)?;
        Ok(PassReport { found: queues, done: queues, ..PassReport::default() })
    }

    async fn advance(&self, engine: &Engine) -> Result<usize, Failure> {
        let since = engine.sequencer.epoch();
        let queues = engine.low_water_marks.advance(&self.watch).await?;
        engine.sequencer.note_safe(since, engine.low_water_marks.safe_position());
        engine.due_marks.advance(&self.watch).await?;
        Ok(queues)
    }

    /// Looks for claimable runs below a low-water mark, and drops the marks of their queues on every
    /// server; and for keys of queues that the database does not have, which this server drops.
    pub async fn repair(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        drop_stale_keys(engine).await?;
        let sequenced = engine.sequencer.reached();
        let found = engine.low_water_marks.repair(&self.watch, sequenced).await.map_err(Failure::into_error)?;
        if found.events {
            tracing::error!("events were below the mark of those in the log; they are moved into it now");
            engine.sequencer.drop_all();
        }
        let stranded = found.queues;
        if !stranded.is_empty() {
            tracing::error!(
                queues = stranded.len(),
                "claimable runs were below low-water marks; the marks of their queues are dropped on every server"
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
    tracing::warn!(queues = stale.len(), "the database has lost keys of queues; they are looked up again");
    stale.iter().for_each(|&place| engine.queues.drop_key(&all[place].1));
    engine.notifiers.send_away_for_keys();
    Ok(())
}
