//! The metrics of a server, and access to them.

use metrics_exporter_prometheus::PrometheusHandle;
use subtle::ConstantTimeEq as _;

use tenure_engine::background::registry::Passes;

pub struct Metrics {
    recorded: PrometheusHandle,
    /// Required as `Authorization: Bearer`; none allows everyone.
    token: Option<String>,
}

impl Metrics {
    #[must_use]
    pub fn new(recorded: PrometheusHandle, token: Option<String>) -> Self {
        Self { recorded, token }
    }

    /// True if this header grants access to the metrics.
    pub(super) fn admits(&self, authorization: Option<&str>) -> bool {
        let Some(token) = &self.token else { return true };
        let given = authorization.and_then(|text| text.split_once(' '));
        given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("bearer") && given.trim().as_bytes().ct_eq(token.as_bytes()).into()
        })
    }

    /// Renders the current metrics in Prometheus' text format.
    pub(super) fn render(&self, passes: &Passes) -> String {
        let Passes { engine, counters, worker_counts, .. } = passes;
        let mut text = self.recorded.render();
        counters.gauges.render(&mut text);
        engine.notifiers.resolutions().render(&mut text);
        worker_counts.gauges.render(&mut text);
        engine.schedulers.terms.render(&mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_require_their_token() {
        let recorded = || metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle();
        let metrics = Metrics::new(recorded(), Some("s3cret".to_owned()));
        for admitted in ["Bearer s3cret", "bearer  s3cret"] {
            assert!(metrics.admits(Some(admitted)), "{admitted}");
        }
        for refused in
            [None, Some("s3cret"), Some("Bearer"), Some("Bearer s3cre"), Some("Basic s3cret"), Some("Bearer ")]
        {
            assert!(!metrics.admits(refused), "{refused:?}");
        }
        assert!(Metrics::new(recorded(), None).admits(None));
    }
}
