//! A delayed run under the real clock.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;
use sqlx::PgConnection;
use tenure_api::ids::SlugId;
use tenure_tests::http::TENURE_API;

use crate::rig::{Rig, call, claim_path, worker};

const QUEUE: &str = "delays/linux";
/// Longest time until a run is ready: ten times the promise for an idle machine.
const READY_WITHIN: TimeDelta = TimeDelta::milliseconds(2_500);

async fn delay(conn: &mut PgConnection, task: SlugId, seconds: f64) {
    sqlx::query(
        "WITH held AS (
             UPDATE pending SET hold = 1, held_until = (SELECT now FROM db_now) + make_interval(secs => $2),
                 reserved_until = '3000-01-01', hidden_until = '3000-01-01'
             WHERE id = $1 RETURNING queue
         )
         INSERT INTO counters AS c (queue, pending, claimed, delayed) SELECT queue, -1, 0, 1 FROM held
         ON CONFLICT (queue) DO UPDATE SET pending = c.pending - 1, delayed = c.delayed + 1",
    )
    .bind(task.uuid())
    .bind(seconds)
    .execute(conn)
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_worker_gets_delayed_run_soon_after_its_time() {
    let rig = Rig::start_with(|launch| launch.env("TENURE_FALLBACKS", "off").flag("--claim-work-wait", "20s")).await;
    let mut conn = rig.database.connect("test").await;
    let task = rig.create_one(QUEUE).await;
    // The server finds nothing due before the delay ends, and rarely looks.
    delay(&mut conn, task, 4.0).await;
    let until: DateTime<Utc> = sqlx::query_scalar("SELECT held_until FROM pending").fetch_one(&mut conn).await.unwrap();
    let answer = call(&mut rig.client(), &rig.root, "POST", &claim_path(QUEUE), Some(&worker(1))).await;
    assert_eq!(answer.body["tasks"][0]["status"]["taskId"], json!(task), "{}", answer.body);
    let (scheduled, started): (DateTime<Utc>, DateTime<Utc>) =
        sqlx::query_as("SELECT scheduled, started FROM claims").fetch_one(&mut conn).await.unwrap();
    assert!(scheduled < until, "it was pending before");
    assert!(started >= until, "{started} is before {until}");
    assert!(started < until + READY_WITHIN, "{started} is long after {until}");
    let events = rig.call("GET", &format!("{TENURE_API}/events?after=0"), None).await.body;
    let notes: Vec<_> =
        events["events"].as_array().unwrap().iter().filter(|event| event["payload"]["runs"].is_array()).collect();
    assert_eq!(notes.len(), 1, "{events}");
    assert_eq!(notes[0]["exchange"], "exchange/tenure/v1/task-ready");
    assert_eq!(notes[0]["payload"]["runs"], json!([{"taskId": task, "runId": 0, "priority": "lowest"}]));
}
