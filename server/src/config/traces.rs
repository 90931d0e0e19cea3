//! Settings of traces.

use clap::Args;
use tenure_engine::traces::TraceSettings;

use super::{SettingError, http_url_fix};

const ENDPOINT: &str = "--otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT)";
/// Path of spans below the endpoint.
const SPANS: &str = "/v1/traces";

#[derive(Args, Clone, Debug)]
pub struct TraceArgs {
    /// The URL of a collector of OpenTelemetry that accepts OTLP over HTTP, without the path
    /// `/v1/traces`: `http://localhost:4318`. Spans of requests and tasks are sent to it. Default:
    /// none, and no spans.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// The part of all traces that is sent (0 to 1). All servers of a database need the same. If
    /// too large, servers and collector are busy with spans; if too small, few tasks have a trace.
    #[arg(long, env = "TENURE_TRACE_RATIO", default_value = "0.01", value_name = "RATIO")]
    pub trace_ratio: f64,
}

impl TraceArgs {
    pub(super) fn settings(&self) -> Result<Option<TraceSettings>, SettingError> {
        if !(0.0..=1.0).contains(&self.trace_ratio) {
            let fix = "choose between 0 and 1, such as 0.01 for one trace of a hundred";
            return Err(SettingError::new("--trace-ratio (TENURE_TRACE_RATIO)", self.trace_ratio, fix));
        }
        let Some(url) = self.otlp_endpoint.as_deref().filter(|url| !url.is_empty()) else { return Ok(None) };
        // Other programs accept it.
        let base = url.strip_suffix('/').unwrap_or(url);
        match http_url_fix(base) {
            None => Ok(Some(TraceSettings { url: format!("{base}{SPANS}"), ratio: self.trace_ratio })),
            // The URL may have a password.
            Some(fix) if url.contains('@') => Err(SettingError::secret(ENDPOINT, fix)),
            Some(fix) => Err(SettingError::new(ENDPOINT, url, fix)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, ratio: f64) -> Result<Option<String>, String> {
        let args = TraceArgs { otlp_endpoint: Some(url.to_owned()), trace_ratio: ratio };
        args.settings().map(|settings| settings.map(|settings| settings.url)).map_err(|error| error.to_string())
    }

    #[test]
    fn endpoint_gets_path_of_spans() {
        let spans = Ok(Some("http://localhost:4318/v1/traces".to_owned()));
        for url in ["http://localhost:4318", "http://localhost:4318/"] {
            assert_eq!(read(url, 0.01), spans);
        }
        assert_eq!(read("https://o.example/otlp", 1.0), Ok(Some("https://o.example/otlp/v1/traces".to_owned())));
        assert_eq!(read("", 0.0), Ok(None));
    }

    #[test]
    fn wrong_endpoint_or_ratio_is_refused() {
        for url in ["localhost:4318", "http://", "grpc://localhost:4317", "http://user:secret@host", "http://host?a=b"]
        {
            let refused = |error: String| error.contains("--otlp-endpoint") && !error.contains("secret@");
            assert!(read(url, 0.01).is_err_and(refused), "{url}");
        }
        for ratio in [-0.1, 1.1, f64::NAN] {
            assert!(read("", ratio).is_err_and(|error| error.contains("--trace-ratio")), "{ratio}");
        }
    }
}
