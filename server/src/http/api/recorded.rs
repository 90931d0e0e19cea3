//! The metrics of a server, and access to them.

use std::path::PathBuf;

use metrics_exporter_prometheus::PrometheusHandle;
use metrics_process::Collector;
use nix::sys::statvfs::statvfs;
use subtle::ConstantTimeEq as _;

use super::exposition::sorted;
use tenure_engine::background::registry::Passes;
use tenure_store::session::Pools;

pub struct Metrics {
    recorded: PrometheusHandle,
    process: Collector,
    /// Required as `Authorization: Bearer`; none allows everyone.
    token: Option<String>,
    pools: Pools,
    /// Directory of the embedded PostgreSQL.
    data_dir: Option<PathBuf>,
}

impl Metrics {
    #[must_use]
    pub fn new(recorded: PrometheusHandle, token: Option<String>, pools: Pools, data_dir: Option<PathBuf>) -> Self {
        Self { recorded, process: Collector::default(), token, pools, data_dir }
    }

    /// True if this header grants access to the metrics.
    pub(super) fn admits(&self, authorization: Option<&str>) -> bool {
        self.token.as_deref().is_none_or(|token| is_bearer(token, authorization))
    }

    /// Renders the current metrics in Prometheus' text format.
    pub(super) fn render(&self, passes: &Passes) -> String {
        let Passes { engine, counters, dead_letters, problems, worker_counts, .. } = passes;
        counters.publish_age();
        self.process.collect();
        self.measure();
        let (mut text, shown) = (self.recorded.render(), &engine.shown_queues);
        counters.gauges.render(&mut text, shown);
        problems.oldest.gauges.render(&mut text, shown);
        dead_letters.gauges.render(&mut text, shown);
        engine.notifiers.statistics().render(&mut text, shown);
        worker_counts.gauges.render(&mut text, shown);
        worker_counts.by_state.render(&mut text, shown);
        engine.schedulers.terms.render(&mut text, shown);
        sorted(&text)
    }

    fn measure(&self) {
        let Pools { requests, background, lookups } = &self.pools;
        let (mut idle, mut all) = (0, 0);
        for pool in [requests, background, lookups] {
            // In this order, so that a connection opened in between does not count as idle only.
            idle += pool.num_idle();
            all += pool.size() as usize;
        }
        for (state, connections) in [("idle", idle), ("busy", all.saturating_sub(idle))] {
            metrics::gauge!("tenure_pool_connections", "state" => state).set(connections as f64);
        }
        if let Some(found) = self.data_dir.as_deref().and_then(|dir| statvfs(dir).ok()) {
            // The types depend on the system.
            let free = found.blocks_available() as f64 * found.fragment_size() as f64;
            metrics::gauge!("tenure_data_free_bytes").set(free);
        }
    }
}

fn is_bearer(token: &str, authorization: Option<&str>) -> bool {
    let given = authorization.and_then(|text| text.split_once(' '));
    given.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case("bearer") && given.trim().as_bytes().ct_eq(token.as_bytes()).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_require_their_token() {
        for admitted in ["Bearer s3cret", "bearer  s3cret"] {
            assert!(is_bearer("s3cret", Some(admitted)), "{admitted}");
        }
        for refused in
            [None, Some("s3cret"), Some("Bearer"), Some("Bearer s3cre"), Some("Basic s3cret"), Some("Bearer ")]
        {
            assert!(!is_bearer("s3cret", refused), "{refused:?}");
        }
    }
}
