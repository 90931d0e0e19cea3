//! Creates tasks, one or many at a time, and leaves them pending.

use std::rc::Rc;

use super::Mode;
use super::work::CREATED_AT_ONCE;
use crate::BenchError;
use crate::lane::Lane;
use crate::run::Run;

pub(crate) struct Create;

impl Mode for Create {
    const STEPS: &'static [&'static str] = &["create"];

    async fn prepare(_lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self)
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        lane.create(0).await?;
        Ok(1)
    }

    async fn finish(run: &Rc<Run>) -> Result<(), BenchError> {
        expect_pending(run).await
    }
}

pub(crate) struct Create100;

impl Mode for Create100 {
    const STEPS: &'static [&'static str] = &["create"];

    async fn prepare(_lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self)
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        lane.create_many(0, CREATED_AT_ONCE).await?;
        Ok(CREATED_AT_ONCE as u64)
    }

    async fn finish(run: &Rc<Run>) -> Result<(), BenchError> {
        expect_pending(run).await
    }
}

/// Checks that every acknowledged task is pending. There may be more: the answer to a create that
/// was cut off is not counted.
async fn expect_pending(run: &Rc<Run>) -> Result<(), BenchError> {
    let mut lane = Lane::new(Rc::clone(run), 0)?;
    match run.created().saturating_sub(lane.pending().await?) {
        0 => Ok(()),
        lost => Err(BenchError::Lost(lost)),
    }
}
