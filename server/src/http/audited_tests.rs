//! Every operation that is not a GET is recorded in the audit, or listed here with the reason why not.

use std::collections::BTreeSet;

use super::declaration::Method;
use super::routes;
use tenure_domain::audit::{Action, Kind};

const CREATES: &str = "creates tasks: too many to record";
const OF_WORKERS: &str = "a call of workers with their claims, sessions or registrations";
const READS: &str = "only reads";
const SIGNED: &str = "a message or bytes, by a signed URL";

const UNRECORDED: [(&str, &str); 36] = [
    ("createTask", CREATES),
    ("createTasks", CREATES),
    ("retryEnqueue", CREATES),
    ("triggerSchedule", CREATES),
    ("appendLiveLog", OF_WORKERS),
    ("claimTask", OF_WORKERS),
    ("claimWork", OF_WORKERS),
    ("createArtifact", OF_WORKERS),
    ("createUpload", OF_WORKERS),
    ("finishArtifact", OF_WORKERS),
    ("finishUpload", OF_WORKERS),
    ("putCheckpoint", OF_WORKERS),
    ("reclaimTask", OF_WORKERS),
    ("registerWorker", OF_WORKERS),
    ("renewSession", OF_WORKERS),
    ("reportCompleted", OF_WORKERS),
    ("reportException", OF_WORKERS),
    ("reportFailed", OF_WORKERS),
    ("reregisterWorker", OF_WORKERS),
    ("startSession", OF_WORKERS),
    ("tickPartition", OF_WORKERS),
    ("leavePartition", OF_WORKERS),
    ("work", OF_WORKERS),
    ("authenticateHawk", READS),
    ("expandScopes", READS),
    ("startDownload", READS),
    ("statuses", READS),
    ("taskQueueCountsBatch", READS),
    ("tasks", READS),
    ("testAuthenticate", READS),
    ("deleteMessage", SIGNED),
    ("updateMessage", SIGNED),
    ("uploadArtifact", SIGNED),
    ("testSubscription", "sends a message, and changes nothing"),
    ("declareWorker", "only prolongs the listing of a worker"),
    ("purgeCache", "asks workers to purge a cache, and is deleted after a day"),
];
/// Only on servers with a manual clock, for tests.
const OF_TESTS: &str = "advanceClock";

#[test]
fn every_change_is_recorded_or_excepted() {
    let changing: BTreeSet<&str> =
        routes().iter().filter(|route| route.endpoint.method != Method::Get).map(|route| route.endpoint.name).collect();
    let excepted: BTreeSet<&str> = UNRECORDED.iter().map(|(name, _)| *name).chain([OF_TESTS]).collect();
    let of_commands = |action: &&Action| action.kind() != Kind::DatabaseRole;
    let recorded: BTreeSet<&str> = Action::ALL.iter().filter(of_commands).map(|action| action.name()).collect();
    let both: Vec<_> = recorded.intersection(&excepted).collect();
    assert!(both.is_empty(), "recorded and excepted: {both:?}");
    let known: BTreeSet<&str> = recorded.union(&excepted).copied().collect();
    let unknown: Vec<_> = changing.difference(&known).collect();
    assert!(unknown.is_empty(), "record these in the audit (tenure_domain::audit), or except them here: {unknown:?}");
    let gone: Vec<_> = known.difference(&changing).collect();
    assert!(gone.is_empty(), "no operation has these names: {gone:?}");
}

#[test]
fn document_names_every_recorded_change() {
    let document = include_str!("../../../docs/audit.md");
    let words: BTreeSet<&str> = document.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
    let missing: Vec<_> = Action::ALL.iter().map(|action| action.name()).filter(|name| !words.contains(name)).collect();
    assert!(missing.is_empty(), "docs/audit.md lacks {missing:?}");
}
