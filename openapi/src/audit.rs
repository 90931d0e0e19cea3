//! Bodies of the audit: who changed what.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::dates::Timestamp;

/// A recorded change.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// Order of the changes.
    pub id: i64,
    /// Time of the change.
    pub at: Timestamp,
    /// Client that made the change; `local:` and a user for commands that use the database.
    pub client_id: String,
    /// Name of the operation.
    pub action: String,
    /// Kind of the object.
    pub kind: String,
    /// Id of the object.
    pub object: String,
    /// Details of the change.
    #[schema(value_type = Object)]
    pub detail: Box<RawValue>,
    /// Trace id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// A page of recorded changes.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// Newest first.
    pub audit: Vec<AuditEntry>,
    /// Token of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation_token: Option<String>,
}
