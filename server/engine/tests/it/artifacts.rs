//! Artifacts: rules against SQL, concurrent creation, the end of a run, and removal.

use tenure_api::ids::SlugId;
use tenure_api::objects::ObjectHashes;
use tenure_api::states::ArtifactErrorReason;
use tenure_domain::artifact::{Artifact, Details, EXPIRED_KEPT, LINKS_MAX, Stored, UPLOAD_MAX, object_name};
use tenure_engine::background::artifacts as artifact_pass;
use tenure_engine::ops::create_artifact::{self, Created, RunRef};
use tenure_engine::ops::objects as object_ops;
use tenure_store::{artifacts, events, objects};

use crate::support::*;

async fn running(queue: &Queue) -> RunRef {
    let task = queue.create_one(QUEUE).await;
    let claim = queue.claim_one(QUEUE).await;
    assert_eq!(claim.task.id, task);
    RunRef { task, run: claim.run }
}

fn upload(n: u8) -> SlugId {
    SlugId::from_random([n; 16])
}

fn artifact(name: &str, details: Details, expires: DateTime<Utc>) -> Artifact {
    let content_type = "text/plain".to_owned();
    // Dates have the precision of the wire.
    let expires = DateTime::from_timestamp_millis(expires.timestamp_millis()).unwrap();
    Artifact { name: name.to_owned(), details, content_type, content_length: None, expires }
}

fn reference(url: &str) -> Details {
    Details::Reference { url: url.to_owned() }
}

fn link(name: &str) -> Details {
    Details::Link { artifact: name.to_owned() }
}

fn error() -> Details {
    Details::Error { reason: ArtifactErrorReason::FileMissing, message: "no such file: \u{e9}".to_owned() }
}

async fn create(queue: &Queue, run_ref: RunRef, artifact: Artifact) -> Result<Created, OpError> {
    create_artifact::create(&queue.engine.pool, &queue.engine.notifiers, run_ref, artifact).await
}

async fn stored(queue: &Queue, run_ref: RunRef, name: &str) -> Option<Stored> {
    let mut conn = queue.engine.pool.acquire().await.unwrap();
    let (seq, run) = artifacts::find_run(&mut conn, run_ref.task, Some(run_ref.run)).await.unwrap()?;
    artifacts::find(&mut conn, seq, run, name).await.unwrap()
}

/// Per event: exchange, state of the task, number of runs.
async fn emitted(database: &TestDatabase, task: TaskId) -> Vec<(String, Value, usize)> {
    let mut conn = database.connect().await;
    events::sequence(&mut conn, events::Sequenced::default()).await.unwrap();
    let events::Page::Events(events, _) = events::read(&mut conn, 0, 1000).await.unwrap() else { panic!("gone") };
    let of_task = |event: &Value| event["payload"]["status"]["taskId"] == json!(task);
    let events = events.iter().map(|event| serde_json::to_value(event).unwrap()).filter(of_task);
    let short = |event: Value| {
        let status = &event["payload"]["status"];
        let name = event["exchange"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        (name, status["state"].clone(), status["runs"].as_array().unwrap().len())
    };
    events.map(short).collect()
}

#[tokio::test]
async fn every_type_round_trips() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let expires = now(&database).await + TimeDelta::hours(3);
    let object = Details::Object { upload: upload(7) };
    for (n, details) in [Details::S3, object, reference("https://a/"), link("x"), error()].into_iter().enumerate() {
        let requested = Artifact { content_length: Some(n as i64), ..artifact(&format!("a{n}"), details, expires) };
        let created = create(&queue, run_ref, requested.clone()).await.unwrap();
        assert_eq!((&created.artifact, created.project.as_str()), (&requested, "none"));
        let found = stored(&queue, run_ref, &requested.name).await.unwrap();
        assert_eq!(found.artifact, requested);
        assert_eq!(found.present, n != 1, "an object is present once its upload finishes");
        create(&queue, run_ref, requested.clone()).await.unwrap();
        assert_eq!(stored(&queue, run_ref, &requested.name).await.unwrap().artifact, requested);
    }
    let emitted = emitted(&database, run_ref.task).await;
    let of_artifacts = emitted.iter().filter(|(exchange, ..)| exchange == "artifact-created").count();
    assert_eq!(of_artifacts, 3, "of the reference, the link and the error, once each: {emitted:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn one_of_two_concurrent_artifacts_gets_name() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let expires = now(&database).await + TimeDelta::hours(3);
    for n in 0..20 {
        let name = format!("name-{n}");
        let (one, two) = tokio::join!(
            create(&queue, run_ref, artifact(&name, Details::S3, expires)),
            create(&queue, run_ref, artifact(&name, error(), expires)),
        );
        let refused = [&one, &two].into_iter().filter(|result| matches!(result, Err(OpError::Conflict(_)))).count();
        assert_eq!((one.is_ok() as usize + two.is_ok() as usize, refused), (1, 1), "{one:?} {two:?}");
        let winner = one.or(two).unwrap().artifact;
        assert_eq!(stored(&queue, run_ref, &name).await.unwrap().artifact, winner);
        // Two identical requests both succeed.
        let same = artifact(&format!("same-{n}"), reference("https://a/"), expires);
        let (one, two) = tokio::join!(create(&queue, run_ref, same.clone()), create(&queue, run_ref, same.clone()));
        assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    }
    let emitted = emitted(&database, run_ref.task).await;
    let same = emitted.iter().filter(|(exchange, ..)| exchange == "artifact-created").count();
    let errors = number(database.pool(), "SELECT count(*) FROM artifacts WHERE storage_type = 5").await;
    assert_eq!(same as i64, 20 + errors, "each is emitted once");
    finish(database, queue).await;
}

#[tokio::test]
async fn artifact_is_created_before_concurrent_report_or_refused() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let expires = now(&database).await + TimeDelta::hours(3);
    // The report is first: the artifact waits for the task.
    let gate = Gate::close(&database, "runs").await;
    let reporting = queue.report(run_ref.task, run_ref.run, Report::Completed);
    let creating = meet(&database, gate, create(&queue, run_ref, artifact("late", Details::S3, expires)));
    let (reported, late) = tokio::join!(reporting, creating);
    reported.unwrap();
    assert!(matches!(late, Err(OpError::Conflict(_))), "{late:?}");
    assert!(stored(&queue, run_ref, "late").await.is_none());

    // The artifact is first: the report waits in the blocking path.
    let run_ref = running(&queue).await;
    let gate = Gate::close(&database, "artifacts").await;
    let creating = create(&queue, run_ref, artifact("early", reference("https://a/"), expires));
    let reporting = meet(&database, gate, queue.report(run_ref.task, run_ref.run, Report::Completed));
    let (created, reported) = tokio::join!(creating, reporting);
    created.unwrap();
    reported.unwrap();
    let emitted = emitted(&database, run_ref.task).await;
    let exchanges: Vec<&str> = emitted.iter().map(|(exchange, ..)| exchange.as_str()).collect();
    assert_eq!(exchanges, ["task-defined", "task-pending", "task-running", "artifact-created", "task-completed"]);
    assert_eq!(emitted[3].1, "running", "the event shows the task at that time");
    finish(database, queue).await;
}

#[tokio::test]
async fn excepted_run_accepts_artifacts_for_25_minutes() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let expires = now(&database).await + TimeDelta::hours(30);
    let shutdown = Report::Exception(ExceptionReason::WorkerShutdown);
    queue.report(run_ref.task, run_ref.run, shutdown).await.unwrap();
    create(&queue, run_ref, artifact("log", reference("https://a/"), expires)).await.unwrap();
    let second = queue.claim_one(QUEUE).await.run;
    create(&queue, run_ref, artifact("log", link("b"), expires)).await.unwrap();
    queue.report(run_ref.task, second, Report::Completed).await.unwrap();
    create(&queue, run_ref, artifact("b", error(), expires)).await.unwrap();
    let emitted = emitted(&database, run_ref.task).await;
    let of_artifacts: Vec<(Value, usize)> = emitted
        .into_iter()
        .filter(|(exchange, ..)| exchange == "artifact-created")
        .map(|(_, state, runs)| (state, runs))
        .collect();
    assert_eq!(of_artifacts, [(json!("pending"), 2), (json!("running"), 2), (json!("completed"), 2)]);
    let other = RunRef { run: second, ..run_ref };
    let refused = create(&queue, other, artifact("x", Details::S3, expires)).await;
    assert!(matches!(refused, Err(OpError::Conflict(_))), "{refused:?}");
    advance(&database, "25 minutes").await;
    let refused = create(&queue, run_ref, artifact("x", Details::S3, expires)).await;
    assert!(matches!(refused, Err(OpError::Conflict(_))), "{refused:?}");
    let refused = create(&queue, run_ref, artifact("b", error(), expires)).await;
    assert!(matches!(refused, Err(OpError::Conflict(_))), "{refused:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn object_is_present_once_its_own_upload_finishes() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let expires = now(&database).await + TimeDelta::hours(3);
    let requested = artifact("o", Details::Object { upload: upload(1) }, expires);
    create(&queue, run_ref, requested.clone()).await.unwrap();
    // A repeat continues the same upload.
    let again = Artifact { details: Details::Object { upload: upload(2) }, ..requested.clone() };
    assert_eq!(create(&queue, run_ref, again.clone()).await.unwrap().artifact.details, requested.details);
    let end = async |upload: SlugId| {
        create_artifact::finish(&queue.engine.pool, &queue.engine.notifiers, run_ref, "o", upload).await
    };
    assert!(matches!(end(upload(2)).await, Err(OpError::Input(_))), "another upload");
    assert!(matches!(end(upload(1)).await, Err(OpError::Input(_))), "no object yet");
    let name = object_name(run_ref.task, run_ref.run, "o");
    let mut conn = database.connect().await;
    let object = objects::NewObject {
        name: &name,
        project: "none",
        upload: upload(1).uuid(),
        expires: expires - TimeDelta::hours(1),
        known_until: expires - TimeDelta::hours(1),
        sha256: None,
        sha512: None,
    };
    assert!(objects::begin(&mut conn, object, 60.0).await.unwrap());
    assert!(matches!(end(upload(1)).await, Err(OpError::Input(_))), "its upload is not finished");
    objects::finish(&mut conn, &name, upload(1).uuid(), None, None).await.unwrap();
    let (one, two) = tokio::join!(end(upload(1)), end(upload(1)));
    one.unwrap();
    two.unwrap();
    assert!(stored(&queue, run_ref, "o").await.unwrap().present);
    let object = objects::find(&mut conn, &name).await.unwrap().unwrap();
    let known_until = stored(&queue, run_ref, "o").await.unwrap().removable;
    assert_eq!((object.expires, object.removable), (requested.expires, known_until), "as the artifact's");
    assert_eq!(known_until, requested.expires + EXPIRED_KEPT);
    let emitted = emitted(&database, run_ref.task).await;
    assert_eq!(emitted.iter().filter(|(exchange, ..)| exchange == "artifact-created").count(), 1, "{emitted:?}");
    let refused = create(&queue, run_ref, again).await;
    assert!(matches!(refused, Err(OpError::Conflict(_))), "{refused:?}");
    let missing = create_artifact::finish(&queue.engine.pool, &queue.engine.notifiers, run_ref, "p", upload(1)).await;
    assert!(matches!(missing, Err(OpError::NotFound(_))), "{missing:?}");
    finish(database, queue).await;
}

#[tokio::test]
async fn upload_of_removable_object_cannot_be_finished() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let at = now(&database).await;
    let requested = artifact("o", Details::Object { upload: upload(1) }, at + TimeDelta::hours(3));
    create(&queue, run_ref, requested).await.unwrap();
    let name = object_name(run_ref.task, run_ref.run, "o");
    let mut conn = database.connect().await;
    let (id, sha256, sha512) = (upload(1).uuid(), None, None);
    let object =
        objects::NewObject { name: &name, project: "none", upload: id, expires: at, known_until: at, sha256, sha512 };
    // Removable within seconds, long before the artifact.
    assert!(objects::begin(&mut conn, object, 30.0).await.unwrap());
    objects::finish(&mut conn, &name, id, None, None).await.unwrap();
    let ended = create_artifact::finish(&queue.engine.pool, &queue.engine.notifiers, run_ref, "o", upload(1)).await;
    assert!(matches!(&ended, Err(OpError::Input(text)) if text.contains("has expired")), "{ended:?}");
    assert!(!stored(&queue, run_ref, "o").await.unwrap().present);
    finish(database, queue).await;
}

#[tokio::test]
async fn object_is_retained_no_longer_than_its_artifact() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let at = now(&database).await;
    let late = at + TimeDelta::days(365_000);
    let begin = async |name: &str| {
        let of = object_ops::Upload { name, project: "none", id: upload(1) };
        object_ops::begin(&queue.engine.pool, of, late, &ObjectHashes::default()).await
    };
    let name = object_name(run_ref.task, run_ref.run, "o");
    let early = begin(&name).await;
    assert!(matches!(&early, Err(OpError::Input(text)) if text.contains("createArtifact")), "{early:?}");
    let requested = artifact("o", Details::Object { upload: upload(1) }, at + TimeDelta::hours(3));
    create(&queue, run_ref, requested.clone()).await.unwrap();
    let object = begin(&name).await.unwrap();
    let artifact = stored(&queue, run_ref, "o").await.unwrap();
    assert_eq!((object.expires, object.removable), (requested.expires, artifact.removable));
    let alone = begin("of no artifact").await.unwrap();
    assert_eq!((alone.expires, alone.removable), (late, late + EXPIRED_KEPT));
    finish(database, queue).await;
}

#[tokio::test]
async fn upload_reserves_its_name() {
    let (database, queue) = start().await;
    let at = now(&database).await;
    let begin = async |n: u8, project: &str| {
        let expires = at + TimeDelta::hours(1);
        let (sha256, sha512) = (None, None);
        let (upload, known_until) = (upload(n).uuid(), expires);
        let object = objects::NewObject { name: "o", project, upload, expires, known_until, sha256, sha512 };
        objects::begin(&mut database.connect().await, object, 60.0).await.unwrap()
    };
    let (one, two) = tokio::join!(begin(1, "p"), begin(2, "p"));
    assert!(one != two, "one of them");
    let winner = if one { 1 } else { 2 };
    assert!(begin(winner, "p").await, "the same again");
    assert!(!begin(winner, "q").await, "of another project");
    let mut conn = database.connect().await;
    objects::finish(&mut conn, "o", upload(winner).uuid(), None, None).await.unwrap();
    assert!(!begin(winner, "p").await, "it is finished");
    finish(database, queue).await;
}

#[tokio::test]
async fn restarted_upload_with_earlier_expiry_is_removed_sooner() {
    let (database, queue) = start().await;
    let at = now(&database).await;
    let begin = async |expires: DateTime<Utc>| {
        let of = object_ops::Upload { name: "o", project: "none", id: upload(1) };
        object_ops::begin(&queue.engine.pool, of, expires, &ObjectHashes::default()).await.unwrap().removable
    };
    let (late, early) = (at + TimeDelta::days(365_000), at + TimeDelta::days(1));
    assert_eq!([begin(late).await, begin(early).await], [late + EXPIRED_KEPT, early + EXPIRED_KEPT]);
    // Its bytes may be in transit by the last URL.
    assert!(begin(at).await >= at + UPLOAD_MAX);
    finish(database, queue).await;
}

#[tokio::test]
async fn unfinished_upload_is_refused_as_expired_until_removed() {
    let (database, queue) = start().await;
    let expires = now(&database).await;
    let of = object_ops::Upload { name: "o", project: "none", id: upload(1) };
    let begin = async || object_ops::begin(&queue.engine.pool, of, expires, &ObjectHashes::default()).await;
    begin().await.unwrap();
    advance(&database, "1 day").await;
    let refused = begin().await;
    assert!(matches!(&refused, Err(OpError::Conflict(why)) if why.contains("`expires`")), "{refused:?}");
    artifact_pass::pass(&queue.engine).await.unwrap();
    begin().await.unwrap();
    finish(database, queue).await;
}

#[tokio::test]
async fn links_are_resolved_in_one_finite_statement() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let expires = now(&database).await + TimeDelta::hours(3);
    for (name, target) in [("a", "b"), ("b", "c"), ("x", "y"), ("y", "x"), ("z", "nothing")] {
        create(&queue, run_ref, artifact(name, link(target), expires)).await.unwrap();
    }
    create(&queue, run_ref, artifact("c", reference("https://c/"), expires)).await.unwrap();
    let mut conn = database.connect().await;
    let links_max = LINKS_MAX as i32;
    let mut names = async |run: Option<RunId>, name: &str| {
        let chain = artifacts::find_chain(&mut conn, run_ref.task, run, name, links_max).await.unwrap();
        chain.map(|chain| chain.artifacts.into_iter().map(|one| one.artifact.name).collect::<Vec<_>>())
    };
    assert_eq!(names(Some(run_ref.run), "a").await.unwrap(), ["a", "b", "c"]);
    assert_eq!(names(None, "b").await.unwrap(), ["b", "c"], "of the last run");
    assert_eq!(names(None, "z").await.unwrap(), ["z"]);
    assert_eq!(names(None, "x").await.unwrap().len(), LINKS_MAX + 1);
    assert_eq!(names(None, "nothing").await, None);
    assert_eq!(names(RunId::new(1), "a").await, None);
    finish(database, queue).await;
}

#[tokio::test]
async fn task_is_retained_until_artifacts_are_removed() {
    let (database, queue) = start().await;
    let at = now(&database).await;
    let expires = at + TimeDelta::hours(2);
    let wire = |time: DateTime<Utc>| json!(tenure_api::dates::Timestamp::new(time));
    let task = new_task(QUEUE, &json!({"expires": wire(expires)}));
    queue.create(&task).await.unwrap();
    let claim = queue.claim_one(QUEUE).await;
    let run_ref = RunRef { task: task.id, run: claim.run };
    for details in [Details::S3, reference("https://a/"), error()] {
        let name = format!("{details:?}");
        create(&queue, run_ref, artifact(&name, details, expires)).await.unwrap();
    }
    queue.report(run_ref.task, run_ref.run, Report::Completed).await.unwrap();
    let artifacts_left = async || number(database.pool(), "SELECT count(*) FROM artifacts").await;
    assert_eq!(artifact_pass::pass(&queue.engine).await.unwrap().found, 0);
    advance(&database, "2 hours 1 second").await;
    run_sql(database.pool(), "UPDATE due SET deadline = NULL, expires = (SELECT min(expires) FROM task_definitions)")
        .await;
    let mut conn = database.connect().await;
    events::sequence(&mut conn, events::Sequenced::default()).await.unwrap();
    sqlx::query("UPDATE log_readers SET position = 1000").execute(database.pool()).await.unwrap();
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 0, "the task has artifacts");
    // Two servers remove each once.
    let (one, two) = tokio::join!(artifact_pass::pass(&queue.engine), artifact_pass::pass(&queue.engine));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.done + two.done, artifacts_left().await), (3, 0), "{one:?} {two:?}");
    assert_eq!(queue.run_pass("expiry").await.unwrap().done, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn bytes_are_retained_while_upload_may_be_in_progress() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let at = now(&database).await;
    let soon = at + TimeDelta::minutes(1);
    let bytes = artifact("bytes", Details::S3, soon);
    create(&queue, run_ref, bytes.clone()).await.unwrap();
    create(&queue, run_ref, artifact("elsewhere", reference("https://a/"), soon)).await.unwrap();
    advance(&database, "30 minutes").await;
    assert_eq!(artifact_pass::pass(&queue.engine).await.unwrap().found, 0, "both are still known as expired");
    advance(&database, "2 minutes").await;
    assert_eq!(artifact_pass::pass(&queue.engine).await.unwrap().done, 1);
    assert!(stored(&queue, run_ref, "bytes").await.is_some() && stored(&queue, run_ref, "elsewhere").await.is_none());
    // Creating it again extends its retention; rows listed before are not removed.
    advance(&database, "2 hours").await;
    let mut conn = database.connect().await;
    let due = artifacts::list_removable(&mut conn, START, 10).await.unwrap();
    assert_eq!(due.len(), 1);
    let refused = create(&queue, run_ref, Artifact { expires: at + TimeDelta::hours(20), ..bytes.clone() }).await;
    assert!(matches!(&refused, Err(OpError::Conflict(text)) if text.contains("being removed")), "{refused:?}");
    run_sql(database.pool(), "UPDATE artifacts SET removable = removable + interval '1 day'").await;
    assert_eq!(artifacts::remove(&mut conn, &due).await.unwrap(), 0, "the removal was postponed after the listing");
    assert!(stored(&queue, run_ref, "bytes").await.is_some());
    advance(&database, "2 days").await;
    assert_eq!(artifact_pass::pass(&queue.engine).await.unwrap().done, 1);
    assert!(stored(&queue, run_ref, "bytes").await.is_none());
    finish(database, queue).await;
}

#[tokio::test]
async fn removal_skips_rows_that_are_locked() {
    let (database, queue) = start().await;
    let run_ref = running(&queue).await;
    let soon = now(&database).await + TimeDelta::minutes(1);
    create(&queue, run_ref, artifact("x", error(), soon)).await.unwrap();
    advance(&database, "32 minutes").await;
    let holder = Lock::take(&database, "SELECT FROM artifacts FOR UPDATE").await;
    let report = artifact_pass::pass(&queue.engine).await.unwrap();
    assert_eq!((report.found, report.done, report.lost_race), (1, 0, 1));
    holder.release().await;
    assert_eq!(artifact_pass::pass(&queue.engine).await.unwrap().done, 1);
    finish(database, queue).await;
}
