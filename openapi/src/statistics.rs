//! Numbers of a queue over time.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dates::Timestamp;

/// Numbers of a queue, or of all queues together, over time.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
pub struct Statistics {
    /// Seconds that each point covers: 60, 600 or 3600.
    pub step: i64,
    /// In order of time, without gaps.
    pub points: Vec<StatisticsPoint>,
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatisticsPoint {
    /// Start of the time that the point covers.
    pub at: Timestamp,
    /// New tasks.
    pub created: i64,
    /// Claimed runs.
    pub started: i64,
    /// Tasks resolved as completed.
    pub completed: i64,
    /// Tasks resolved as failed.
    pub failed: i64,
    /// Tasks resolved as exceptions: cancelled, past their deadline, or without retries left.
    pub exception: i64,
    /// Runs whose worker was lost.
    pub lost: i64,
    /// Most pending runs at once, delayed ones excluded.
    pub pending_most: i64,
    /// Most claimed runs at once.
    pub claimed_most: i64,
    /// Seconds that half of the claimed runs were pending at most. Absent without any.
    #[serde(rename = "waitP50", default, skip_serializing_if = "Option::is_none")]
    pub wait_p50: Option<f64>,
    /// Seconds that 95 of 100 claimed runs were pending at most. Absent without any.
    #[serde(rename = "waitP95", default, skip_serializing_if = "Option::is_none")]
    pub wait_p95: Option<f64>,
    /// Seconds that workers held half of the ended runs at most. Absent without any.
    #[serde(rename = "runP50", default, skip_serializing_if = "Option::is_none")]
    pub run_p50: Option<f64>,
    /// Seconds that workers held 95 of 100 ended runs at most. Absent without any.
    #[serde(rename = "runP95", default, skip_serializing_if = "Option::is_none")]
    pub run_p95: Option<f64>,
}
