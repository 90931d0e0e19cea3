//! Pages whose parts cannot be read in time, as behind an old snapshot that keeps dead rows in the
//! indexes.

use super::{QUEUE, get, hides, log_in, shows};
use crate::rig::Rig;

const UNREAD: &str = "could not be read in time";
const OF_QUEUE: &str = "/queue/page/queue";
const WORKER: &str = "/worker/group/worker";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_parts_of_page_are_omitted() {
    let rig = Rig::start().await;
    let group = format!("/group/{}", rig.create_one(QUEUE).await);
    assert_eq!(rig.claim(QUEUE, 1).await.len(), 1);
    rig.create_one(QUEUE).await;
    let looker = log_in(&rig, &rig.make_client("looker", &["queue:*"]).await).await;
    for path in ["/", OF_QUEUE, WORKER] {
        hides(&get(&rig, path, Some(&looker)).await, &[UNREAD]);
    }
    let mut holder = rig.database.connect("holder").await;
    // A lock delays the read as long as a million dead rows.
    sqlx::raw_sql("BEGIN; LOCK TABLE claims").execute(&mut holder).await.unwrap();
    for (path, rest) in
        [("/", "Oldest runnable"), (OF_QUEUE, "Next to be claimed"), (WORKER, "Last contact"), (&group, "Scheduler")]
    {
        shows(&get(&rig, path, Some(&looker)).await, &[UNREAD, rest]);
    }
    sqlx::raw_sql("ROLLBACK; BEGIN; LOCK TABLE pending").execute(&mut holder).await.unwrap();
    shows(&get(&rig, "/", Some(&looker)).await, &[UNREAD, "What holds it"]);
    sqlx::raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    for path in ["/", OF_QUEUE, WORKER, &group] {
        hides(&get(&rig, path, Some(&looker)).await, &[UNREAD]);
    }
    drop(holder);
}
