//! Bodies of the Purge-Cache API. Field names follow Taskcluster's service.

use serde::Deserialize;
use utoipa::ToSchema;

#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PurgeCacheRequest {
    /// A cache of any kind.
    #[schema(min_length = 1, max_length = 1_000, pattern = r"^[\x20-\x7e]*$")]
    pub cache_name: String,
}
