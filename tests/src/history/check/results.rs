//! An acknowledged result can be read at the end.

use std::collections::BTreeSet;

use super::ledger::Ledger;
use super::{Findings, History, Rule, late};

pub(super) fn check(history: &History, ledger: &Ledger<'_>, findings: &mut Findings) {
    for ((task, run), returned) in &ledger.queues.results {
        // Another rule reports a missing task.
        let Some(status) = history.drained.tasks.get(task) else { continue };
        let stored = late::made_for(status, *run).map_or(*run, |made| made.run_id);
        let found = history.results.get(&(*task, stored));
        let certain: BTreeSet<u64> =
            returned.iter().filter(|request| request.certain).map(|request| request.what).collect();
        if certain.len() > 1 {
            findings.add(Rule::Results, format!("run {run} of {task} was acknowledged with each of {certain:?}"));
        }
        if let Some(result) = certain.first()
            && found.and_then(serde_json::Value::as_u64) != Some(*result)
        {
            findings.add(Rule::Results, format!("run {run} of {task} returned {result}, and {found:?} is read"));
        }
        if let Some(found) = found
            && !returned.iter().any(|request| found.as_u64() == Some(request.what))
        {
            findings.add(Rule::Results, format!("{found} is read of run {run} of {task}, which returned {returned:?}"));
        }
    }
}
