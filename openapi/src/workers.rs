//! Bodies about workers.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::dates::Timestamp;
use crate::structure::present;

#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QuarantineWorkerRequest {
    /// End of the quarantine, during which the worker gets no work. A date in the past lifts it.
    pub quarantine_until: Timestamp,
    /// The reason; up to 4,000 characters.
    #[serde(default, deserialize_with = "present")]
    #[schema(max_length = 4_000)]
    pub quarantine_info: Option<String>,
}

#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeclareWorkerRequest {
    /// How long the worker is listed; never shortens a later date.
    pub expires: Timestamp,
}
