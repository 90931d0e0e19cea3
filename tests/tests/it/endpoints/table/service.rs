//! Operations without a caller.

use serde_json::json;

use crate::endpoints::row::{OperationRows, State, operation};

pub fn entries() -> Vec<OperationRows> {
    vec![
        operation("ping", State::Nothing).gives("/alive", true),
        operation("heartbeat", State::Nothing).gives("", json!({})),
        operation("lbheartbeat", State::Nothing).gives("", json!({})),
        operation("livez", State::Nothing).gives("", json!({})),
        operation("readyz", State::Nothing).gives("", json!({})),
        operation("version", State::Nothing).gives("/source", "tenure"),
    ]
}
