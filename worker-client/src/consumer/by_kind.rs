//! One handler for each kind of jobs.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::builder::BuildError;
use super::handler::{Core, Run, malformed};
use super::outcome::Outcome;
use super::stop::Stop;
use crate::kinds;

/// Handlers by the field `kind` of payloads.
pub(super) struct ByKind(BTreeMap<String, Arc<dyn Run>>);

impl ByKind {
    /// # Errors
    /// A kind has two handlers.
    pub(super) fn new(handlers: Vec<(String, Arc<dyn Run>)>) -> Result<Self, BuildError> {
        let mut by_kind = BTreeMap::new();
        for (kind, handler) in handlers {
            if by_kind.insert(kind.clone(), handler).is_some() {
                return Err(BuildError::SameKind(kind));
            }
        }
        Ok(Self(by_kind))
    }

    /// Returns the handler and the arguments, or the error of the payload.
    fn find(&self, payload: &RawValue) -> Result<(Arc<dyn Run>, Box<RawValue>), String> {
        let (kind, args) = kinds::split(payload).map_err(|error| error.to_string())?;
        match self.0.get(&kind) {
            Some(handler) => Ok((Arc::clone(handler), args)),
            None => {
                let known: Vec<String> = self.0.keys().map(|known| format!("{known:?}")).collect();
                Err(format!("unknown kind {kind:?}; this worker has {}", known.join(", ")))
            }
        }
    }
}

impl Run for ByKind {
    fn run(self: Arc<Self>, core: Core, stop: Stop) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        Box::pin(async move {
            match self.find(core.payload()) {
                Ok((handler, args)) => handler.run(core.with_args(args), stop).await,
                Err(problem) => malformed(&problem),
            }
        })
    }
}
