//! Bodies of partition groups, whose members divide work among themselves, and the slots by which
//! they do so.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::dates::Timestamp;
use crate::policy::present_seconds;
use crate::states::PartitionState;
use crate::whole::{present_whole, whole};

/// Number of slots. The share of a member is every slot that leaves its index when divided by the
/// number of shares.
pub const SLOTS: u32 = 240;

/// Returns the slot of a task: the last four bytes of its id, big endian, modulo [`SLOTS`].
#[must_use]
pub fn slot_of_id(id: Uuid) -> u32 {
    slot_of_bytes(id.as_bytes())
}

/// Returns the slot of any other key: the last four bytes of the SHA-256 of its UTF-8 text, big
/// endian, modulo [`SLOTS`].
#[must_use]
pub fn slot_of_key(key: &str) -> u32 {
    slot_of_bytes(&Sha256::digest(key.as_bytes()))
}

fn slot_of_bytes(bytes: &[u8]) -> u32 {
    let last = bytes.iter().rev().take(4).rev();
    last.fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) % SLOTS
}

/// A partition group to store.
#[derive(Deserialize, Debug, Default, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PartitionRequest {
    /// Seconds in which each member calls `tick` once. An existing group keeps its interval, which
    /// cannot be changed. Default 10.
    #[serde(default, deserialize_with = "present_seconds")]
    #[schema(minimum = 1, maximum = 3_600)]
    pub interval: Option<i64>,
    /// Seconds that a member may take to acknowledge a new map; then it is removed. 0, the default:
    /// as long as it calls `tick`.
    #[serde(default, deserialize_with = "present_seconds")]
    #[schema(minimum = 0, maximum = 86_400)]
    pub drain_timeout: Option<i64>,
}

/// The call of a member, once per interval or more often.
#[derive(Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TickRequest {
    /// Names one process: two with the same name would work on the same share. Letters, digits,
    /// hyphens, underscores and dots, beginning with a letter or digit.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    pub member_id: String,
    /// The `epoch` of `next`, once the member has no more work outside its next share.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(minimum = 1)]
    pub acked: Option<i64>,
}

/// The share of a member.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tick {
    /// The share of the member.
    pub state: PartitionState,
    /// Its share is every slot that leaves `index` when divided by `replicas`. Absent while it
    /// waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u16>,
    /// Number of shares. Absent while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u16>,
    /// The map that will be active once all members have acknowledged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextShare>,
    /// Number of the active map; 0 before the first one.
    pub epoch: i64,
    /// Number of the interval: seconds since 1970, divided by `interval`.
    pub number: i64,
    /// Seconds per interval.
    pub interval: i64,
    /// When the share may be given to others, unless the member calls `tick` again. Absent while it
    /// waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<Timestamp>,
    /// The time at which the server answers.
    pub server_time: Timestamp,
}

/// The share of a member in the next map.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextShare {
    /// Absent if the member has no share in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u16>,
    /// Number of shares.
    pub replicas: u16,
    /// Number of the map, which is never used again.
    pub epoch: i64,
}

/// The share of a member, in requests for work.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PartitionClaim {
    /// Name of the partition group, as in the policy of the queue.
    pub name: String,
    /// Number of the map, `epoch` of the member's last tick.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1)]
    pub epoch: i64,
    /// Index of the member.
    #[serde(deserialize_with = "whole")]
    #[schema(maximum = 119)]
    pub index: u16,
}

/// A partition group.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// Seconds per interval.
    pub interval: i64,
    /// Seconds that a member may take to acknowledge a new map; 0: as long as it calls `tick`.
    pub drain_timeout: i64,
    /// `waiting` without a map, `draining` while members have to acknowledge the next one.
    pub state: PartitionState,
    /// Number of the active map; 0 before the first one.
    pub epoch: i64,
    /// Number of shares.
    pub replicas: u16,
    /// The next map, while members have to acknowledge it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextMap>,
    /// Ordered by name.
    pub members: Vec<PartitionMember>,
    /// Time of the first `PUT`.
    pub created: Timestamp,
}

/// The next map of a group.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextMap {
    /// Number of shares.
    pub replicas: u16,
    /// Number of the map.
    pub epoch: i64,
    /// Time of the proposal.
    pub since: Timestamp,
}

/// A member of a group.
#[derive(Serialize, Deserialize, Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionMember {
    /// Its name.
    pub member_id: String,
    /// Its share; absent while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u16>,
    /// Its share in the next map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_index: Option<u16>,
    /// True if the next map waits for this member.
    pub draining: bool,
    /// Number of the interval in which it last called `tick`.
    pub number: i64,
    /// When its share may be given to others, unless it calls `tick` again.
    pub valid_until: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TaskId;

    /// The same values as in the tests of the SQL functions and of the Python library.
    #[test]
    fn slots_match_golden_vectors() {
        let long = "a".repeat(300);
        for (key, slot) in [
            ("", 21),
            ("1", 139),
            ("2", 149),
            ("42", 121),
            ("customer-7", 17),
            ("ada@example.com", 2),
            ("Zoë", 7),
            ("東京", 92),
            (long.as_str(), 32),
        ] {
            assert_eq!(slot_of_key(key), slot, "{key:?}");
        }
        for (id, slot) in [
            ("9HrBC1jMQ3KlZw4CssPUeQ", 121),
            ("fN1SbArXTPSVFNUvaOlinQ", 157),
            ("AAAAAAAAQACAAAAAAAAAAA", 0),
            ("AAAAAAAAQACAAAAA_____w", 15),
        ] {
            assert_eq!(slot_of_id(id.parse::<TaskId>().unwrap().uuid()), slot, "{id}");
        }
    }
}
