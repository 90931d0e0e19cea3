use super::*;
use crate::events::Kind;
use crate::policy::pause::Paused;
use serde_json::json;

fn session_of(queue: &TaskQueueId) -> Identity {
    Identity {
        id: "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10".parse().unwrap(),
        epoch: 7,
        queue: queue.clone(),
        worker_group: "rack-1".parse().unwrap(),
        worker_id: "worker-1".parse().unwrap(),
        ttl: 120,
        started: DateTime::UNIX_EPOCH,
    }
}

fn paused() -> Paused {
    Paused {
        since: DateTime::UNIX_EPOCH,
        by: "ann".into(),
        reason: Some("disk\u{0}".into()),
        until: DateTime::from_timestamp(60, 0),
    }
}

fn limit_of_bytes_reached() -> (Note, serde_json::Value) {
    let (queue, limit) = ("acme/linux".parse().unwrap(), Backlog { tasks: None, bytes: Some(1_000) });
    let note = Note::backlog_limit_reached(queue, 6, 900, limit);
    (note, json!({"version": 1, "taskQueueId": "acme/linux", "tasks": 6, "bytes": 900, "limit": {"bytes": 1_000}}))
}

fn subscription_suspended() -> (Note, serde_json::Value) {
    (
        Note::subscription_suspended("billing".into(), SuspendedBy::Gone, 4, Some("gone".into()), "ann".into()),
        json!({"version": 1, "name": "billing", "suspendedBy": "gone", "position": 4, "error": "gone",
            "clientId": "ann"}),
    )
}

fn partitions_changed() -> (Note, serde_json::Value) {
    (
        Note::partitions_changed("mail".into(), 7, PartitionState::Draining, 5),
        json!({"version": 1, "name": "mail", "epoch": 7, "state": "draining", "replicas": 5}),
    )
}

fn notes() -> Vec<(Note, serde_json::Value)> {
    let queue: TaskQueueId = "acme/linux".parse().unwrap();
    let run =
        ReadyRun { task_id: "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap(), run_id: RunId::FIRST, priority: Priority::High };
    let policy = QueuePolicy { delay: Some(30), ..QueuePolicy::default() };
    let session = session_of(&queue);
    let of_session = |mut fields: serde_json::Value| {
        fields["version"] = 1.into();
        fields["taskQueueId"] = "acme/linux".into();
        fields["workerGroup"] = "rack-1".into();
        fields["workerId"] = "worker-1".into();
        fields["sessionId"] = "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10".into();
        fields["epoch"] = 7.into();
        fields
    };
    let server: ServerId = "3f0c6a52-9c1e-4b57-8a43-2d1f6e9b7c05".parse().unwrap();
    let (zero, minute) = ("1970-01-01T00:00:00.000Z", "1970-01-01T00:01:00.000Z");
    vec![
        (
            Note::task_ready(queue.clone(), vec![run]),
            json!({"version": 1, "taskQueueId": "acme/linux",
                "runs": [{"taskId": "9HrBC1jMQ3KlZw4CssPUeQ", "runId": 0, "priority": "high"}]}),
        ),
        (
            Note::queue_paused(queue.clone(), &paused()),
            json!({"version": 1, "taskQueueId": "acme/linux", "clientId": "ann", "since": zero, "reason": "disk\u{0}",
                "until": minute}),
        ),
        (Note::queue_resumed(queue.clone(), None), json!({"version": 1, "taskQueueId": "acme/linux"})),
        (
            Note::queue_resumed(queue.clone(), Some("ann".into())),
            json!({"version": 1, "taskQueueId": "acme/linux", "clientId": "ann"}),
        ),
        (
            Note::queue_policy_changed(queue.clone(), "ann".into(), 7, Some(policy)),
            json!({"version": 1, "taskQueueId": "acme/linux", "clientId": "ann", "policyVersion": 7,
                "policy": {"delay": 30}}),
        ),
        (
            Note::scheduler_active(queue.clone(), server, 4),
            json!({"version": 1, "taskQueueId": "acme/linux", "serverId": server, "term": 4}),
        ),
        (
            Note::scheduler_inactive(queue.clone(), server, 3, SchedulerEnd::Lost),
            json!({"version": 1, "taskQueueId": "acme/linux", "serverId": server, "term": 3, "endedBy": "lost"}),
        ),
        (
            Note::backlog_limit_reached(queue.clone(), 6, 0, Backlog { tasks: Some(5), bytes: None }),
            json!({"version": 1, "taskQueueId": "acme/linux", "tasks": 6, "limit": {"tasks": 5}}),
        ),
        limit_of_bytes_reached(),
        (
            Note::schedule_failed(queue.clone(), "nightly".into(), DateTime::UNIX_EPOCH, "gone".into(), "ann".into()),
            json!({"version": 1, "taskQueueId": "acme/linux", "name": "nightly", "at": zero, "error": "gone",
                "clientId": "ann"}),
        ),
        subscription_suspended(),
        partitions_changed(),
        (
            Note::queue_policy_changed(queue, "ann".into(), 8, None),
            json!({"version": 1, "taskQueueId": "acme/linux", "clientId": "ann", "policyVersion": 8}),
        ),
        (Note::session_started(&session, "ann".into()), of_session(json!({"clientId": "ann"}))),
        (
            Note::session_ended(&session, SessionEnd::Takeover, 3),
            of_session(json!({"endedBy": "takeover", "returned": 3})),
        ),
    ]
}

#[test]
fn note_round_trips_through_outbox() {
    for (note, payload) in notes() {
        let details = note.details().unwrap();
        assert!(!details.contains('\0'), "a text column cannot hold U+0000");
        assert_eq!(Note::from_details(&details), Some(note.clone()));
        let event = render(DateTime::UNIX_EPOCH, &details, 5).unwrap();
        let routing_key = if note.queue().is_some() { "primary.acme.linux._" } else { "primary._" };
        let expected = json!({"position": 5, "time": "1970-01-01T00:00:00.000Z", "exchange": note.exchange(),
            "routingKey": routing_key, "cc": [], "payload": payload});
        assert_eq!(serde_json::to_value(&event).unwrap(), expected);
    }
}

/// The OpenAPI document promises that a payload has exactly one of these types, so that readers can
/// tell them apart by their fields alone.
#[test]
fn every_message_fits_only_its_own_type() {
    fn fits<T: serde::de::DeserializeOwned>(payload: &serde_json::Value) -> u32 {
        u32::from(serde_json::from_str::<T>(&payload.to_string()).is_ok())
    }
    for (_, payload) in notes() {
        let forms = fits::<TaskReady>(&payload)
            + fits::<QueuePaused>(&payload)
            + fits::<QueueResumed>(&payload)
            + fits::<QueuePolicyChanged>(&payload)
            + fits::<SessionStarted>(&payload)
            + fits::<SessionEnded>(&payload)
            + fits::<SchedulerActive>(&payload)
            + fits::<SchedulerInactive>(&payload)
            + fits::<ScheduleFailed>(&payload)
            + fits::<SubscriptionSuspended>(&payload)
            + fits::<PartitionsChanged>(&payload)
            + fits::<BacklogLimitReached>(&payload);
        assert_eq!(forms, 1, "{payload}");
    }
}

#[test]
fn every_exchange_has_note_and_is_not_for_tasks() {
    let emitted: std::collections::BTreeSet<&str> = notes().iter().map(|(note, _)| note.exchange()).collect();
    let listed = EXCHANGES.map(|name| format!("{PREFIX}{name}"));
    assert_eq!(emitted, listed.iter().map(String::as_str).collect());
    assert!(EXCHANGES.iter().all(|name| !crate::event_filter::EXCHANGES.contains(name)));
    assert!(Kind::from_code(KIND).is_none() && Kind::from_code(KIND - 1).is_some(), "KIND follows the last code");
}

#[test]
fn unknown_note_is_skipped() {
    for details in [
        "",
        "{}",
        r#"{"exchange": "exchange/tenure/v1/later", "payload": {}}"#,
        r#"{"exchange": "exchange/taskcluster-queue/v1/task-ready", "payload": {}}"#,
        r#"{"exchange": "exchange/tenure/v1/queue-resumed", "payload": {"version": 1}}"#,
    ] {
        assert!(render(DateTime::UNIX_EPOCH, details, 1).is_none(), "{details}");
    }
}
