//! Live logs: limits of readers, sizes, and resulting artifacts.

use sqlx::Connection as _;
use tempfile::TempDir;
use tenure_api::credentials::SigningKey;
use tenure_api::ids::SlugId;
use tenure_api::live_log::BACKING_LOG;
use tenure_domain::artifact::{Artifact, Details};
use tenure_domain::live_log;
use tenure_engine::background;
use tenure_engine::blobs::settings::{ArtifactSettings, ArtifactsPlace};
use tenure_engine::blobs::{BlobName, Blobs};
use tenure_engine::live_logs::{Reading, STREAMS_MAX};
use tenure_engine::ops::create_artifact::{self, RunRef};
use tenure_engine::wait_limit::Caller;
use tenure_store::blobs::{self, NewBlob};
use tenure_store::live_logs::{Chunk, append, purge};
use tenure_store::tasks;

use crate::support::*;

/// Attempts over a second.
const LOOKS: usize = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

#[tokio::test]
async fn stalled_reader_counts_even_with_whole_log_buffered() {
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let of = RunRef { task, run: queue.claim_one(QUEUE).await.run };
    let logs = queue.engine.live_logs.clone();
    logs.append(of, 0, b"a line\n".to_vec()).await.unwrap();
    let reading = Reading { from: live_log::From::Offset(0), follow: false, caller: Caller::Authenticated };
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX {
        open.push(logs.open(of, reading).await.unwrap());
    }
    eventually("the whole log waits for each of them", async || open.iter().all(|one| one.pieces.is_closed())).await;
    // Ended streams are dropped within half a second; their readers still count.
    for _ in 0..LOOKS {
        let refused = logs.open(of, reading).await;
        assert!(matches!(refused, Err(OpError::Overloaded(_))), "{refused:?}");
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    let mut first = open.remove(0);
    assert_eq!(first.pieces.recv().await.as_deref(), Some(b"a line\n".as_slice()));
    assert!(logs.open(of, reading).await.is_err(), "the reader still counts");
    drop(first);
    logs.open(of, reading).await.unwrap();
    drop((open, logs));
    finish(database, queue).await;
}

#[tokio::test]
async fn reader_of_deleted_log_gets_final_line() {
    // More than the buffer of a stalled reader.
    const CHUNKS: i64 = 20;
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await;
    let of = RunRef { task, run: queue.claim_one(QUEUE).await.run };
    let run = of.run.number().cast_signed();
    let mut conn = database.connect().await;
    for offset in 0..CHUNKS {
        let chunk = Chunk { task: task.uuid(), run, offset, bytes: b"x".to_vec() };
        append(&mut conn, &[chunk], 1_000).await.unwrap();
    }
    let logs = queue.engine.live_logs.clone();
    let reading = Reading { from: live_log::From::Offset(0), follow: false, caller: Caller::Authenticated };
    let mut whole = logs.open(of, reading).await.unwrap();
    let mut seen = Vec::new();
    while let Some(piece) = whole.pieces.recv().await {
        seen.extend_from_slice(&piece);
    }
    assert_eq!(seen, [b'x'; 20], "nothing is missing");
    let mut behind = logs.open(of, reading).await.unwrap();
    eventually("the first chunks wait for it", async || !behind.pieces.is_empty()).await;
    purge(&mut conn, number(database.pool(), "SELECT seq FROM live_logs").await, run).await.unwrap();
    let mut seen = Vec::new();
    while let Some(piece) = behind.pieces.recv().await {
        seen.extend_from_slice(&piece);
    }
    let seen = String::from_utf8(seen).unwrap();
    let kept = seen.strip_suffix(&live_log::deleted_line()).unwrap_or_else(|| panic!("{seen:?}"));
    assert!((1..20).contains(&kept.len()), "{seen:?}");
    let refused = logs.open(of, reading).await;
    assert!(matches!(refused, Err(OpError::NotFound(_))), "{refused:?}");
    drop((whole, behind, logs, conn));
    finish(database, queue).await;
}

#[tokio::test]
async fn log_size_is_tracked_through_growth_and_truncation() {
    const KEPT_MAX: i64 = 1_000;
    const CHUNK_BYTES: i64 = 100;
    const CHUNKS: i64 = 64;
    let (database, queue) = start().await;
    let task = queue.create_one(QUEUE).await.uuid();
    let run = queue.claim_one(QUEUE).await.run.number().cast_signed();
    let mut conn = database.connect().await;
    let mut kept = 0;
    for n in (0..CHUNKS).chain([CHUNKS - 1]) {
        let bytes = vec![b'x'; usize::try_from(CHUNK_BYTES).unwrap()];
        let chunk = Chunk { task, run, offset: n * CHUNK_BYTES, bytes };
        let appended = append(&mut conn, &[chunk], KEPT_MAX).await.unwrap();
        let [(_, Some(appended))] = appended.as_slice() else { panic!("{appended:?}") };
        assert_eq!(appended.next, (n + 1) * CHUNK_BYTES);
        kept += appended.kept;
    }
    assert_eq!(kept, number(database.pool(), "SELECT kept FROM live_logs").await);
    assert!((KEPT_MAX..CHUNKS * CHUNK_BYTES / 2).contains(&kept), "{kept}");
    finish(database, queue).await;
}

async fn write_two(queue: &Queue, conn: &mut PgConnection) {
    for _ in 0..2 {
        let task = queue.create_one(QUEUE).await.uuid();
        let run = queue.claim_one(QUEUE).await.run.number().cast_signed();
        append(conn, &[Chunk { task, run, offset: 0, bytes: b"x".to_vec() }], 1_000).await.unwrap();
    }
}

#[tokio::test]
async fn failing_log_delays_no_other() {
    const DUE: &str = "SELECT count(*) FROM live_logs WHERE look_at <= now()";
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    write_two(&queue, &mut conn).await;
    // The first log comes first, and its next check cannot be stored.
    let refuse = "UPDATE live_logs l SET look_at = now() - make_interval(secs => 2 - (
                SELECT count(*) FROM live_logs earlier WHERE earlier.seq < l.seq));
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF OLD.seq = (SELECT min(seq) FROM live_logs) THEN RAISE EXCEPTION 'refused'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON live_logs FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refuse).execute(&mut conn).await.unwrap();
    assert_eq!(number(database.pool(), DUE).await, 2);
    background::live_logs::pass(&queue.engine).await.unwrap_err();
    assert_eq!(number(database.pool(), DUE).await, 1, "the other one was looked at");
    sqlx::raw_sql("DROP FUNCTION refuse() CASCADE").execute(&mut conn).await.unwrap();
    assert_eq!(background::live_logs::pass(&queue.engine).await.unwrap().done, 1);
    finish(database, queue).await;
}

#[tokio::test]
async fn logs_skipped_by_slow_pass_are_processed_at_once() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    write_two(&queue, &mut conn).await;
    // The first log exceeds the time limit of a pass.
    let slow = "UPDATE live_logs SET look_at = now();
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.1); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE UPDATE ON live_logs FOR EACH ROW EXECUTE FUNCTION slow()";
    sqlx::raw_sql(slow).execute(&mut conn).await.unwrap();
    let cut_short = background::live_logs::pass(&queue.engine).await.unwrap();
    assert_eq!((cut_short.found, cut_short.done, cut_short.next_in), (2, 1, Some(Duration::ZERO)));
    let rest = background::live_logs::pass(&queue.engine).await.unwrap();
    assert_eq!((rest.found, rest.done, rest.next_in), (1, 1, None));
    finish(database, queue).await;
}

fn start_with_bytes(database: &TestDatabase, folder: &TempDir) -> Queue {
    let settings = ArtifactSettings { place: ArtifactsPlace::Folder(folder.path().join("a")), size_max: 1 << 20 };
    let bytes = Blobs::new(vec![SigningKey::new(b"key")], "http://localhost", &settings);
    Queue::start_with_blobs(database.options(), bytes)
}

/// Its worker will not upload the log of this old exception.
async fn left_behind(database: &TestDatabase, queue: &Queue) -> RunRef {
    let task = queue.create_one(QUEUE).await;
    let of = RunRef { task, run: queue.claim_one(QUEUE).await.run };
    queue.engine.live_logs.append(of, 0, b"a line\n".to_vec()).await.unwrap();
    queue.report(of.task, of.run, Report::Exception(ExceptionReason::WorkerShutdown)).await.unwrap();
    let later = "UPDATE clock SET clock_offset = clock_offset + interval '125 seconds'";
    sqlx::query(later).execute(database.pool()).await.unwrap();
    of
}

/// The other one may be the worker, which may upload for 25 minutes after an exception, or another
/// server, which then deletes the chunks.
#[tokio::test]
async fn log_stored_during_pass_is_not_replaced() {
    const DIGEST: [u8; 32] = [7; 32];
    let (database, folder) = (TestDatabase::create().await, tempfile::tempdir().unwrap());
    let queue = start_with_bytes(&database, &folder);
    let of = left_behind(&database, &queue).await;
    let name = BlobName::artifact(of.task, of.run, BACKING_LOG);
    let mut conn = database.connect().await;
    let mut storing = conn.begin().await.unwrap();
    tasks::lock(&mut storing, of.task.uuid()).await.unwrap();
    let (passed, ()) = tokio::join!(background::live_logs::pass(&queue.engine), async {
        until_a_session_waits(database.pool()).await;
        let id = Uuid::new_v4();
        let row = NewBlob { id, name: name.as_str(), content_type: "text/plain", content_encoding: None };
        blobs::begin(database.pool(), row, Duration::from_secs(60)).await.unwrap();
        blobs::finish(&mut storing, id, 5, &DIGEST, Duration::ZERO).await.unwrap().expect("it was not given up");
        storing.commit().await.unwrap();
    });
    assert_eq!(passed.unwrap().done, 1);
    let found = queue.engine.blobs.find(database.pool(), std::slice::from_ref(&name)).await.unwrap();
    assert_eq!((found[&name].size, found[&name].sha256), (5, DIGEST));
    assert_eq!(number(database.pool(), "SELECT count(*) FROM blobs").await, 1, "what the pass had begun is removed");
    assert_eq!(number(database.pool(), "SELECT count(*) FROM artifacts WHERE storage_type = 1").await, 1);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM live_logs").await, 0);
    finish(database, queue).await;
}

#[tokio::test]
async fn log_with_name_of_unfinished_object_leaves_no_bytes() {
    let (database, folder) = (TestDatabase::create().await, tempfile::tempdir().unwrap());
    let queue = start_with_bytes(&database, &folder);
    let of = left_behind(&database, &queue).await;
    let object = Artifact {
        name: BACKING_LOG.to_owned(),
        details: Details::Object { upload: SlugId::from_random([1; 16]) },
        content_type: "text/plain".to_owned(),
        content_length: None,
        expires: queue.status(of.task).await.expires,
    };
    create_artifact::create(&queue.engine.pool, &queue.engine.notifiers, of, object).await.unwrap();
    assert_eq!(background::live_logs::pass(&queue.engine).await.unwrap().done, 1);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM blobs").await, 0);
    let unfinished = "SELECT count(*) FROM artifacts WHERE storage_type = 2 AND NOT present";
    assert_eq!(number(database.pool(), unfinished).await, 1);
    assert_eq!(number(database.pool(), "SELECT count(*) FROM live_logs").await, 0);
    finish(database, queue).await;
}
