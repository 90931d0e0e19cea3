//! How servers share and store workers that one server has seen.

use std::time::Duration;

use super::*;

async fn another(rig: &Rig, name: &str) -> Server {
    let launch = Launch::on_database(rig.database.url(), &rig.secret_key)
        .flag("--clock", "manual")
        .flag("--claim-work-wait", "4s");
    launch.start(rig.folder.path(), name).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_server_stores_seen_workers_for_others() {
    let rig = rig().await;
    let other = another(&rig, "other").await;
    for id in ["w1", "w2"] {
        assert!(claim_at(&mut client_of(&other), &rig.root, "views/empty", id, 1).await.is_empty());
    }
    assert!(other.stop().await.success());
    let list = get(&rig, &format!("{}/workers", types("views/empty"))).await;
    assert_eq!(list["workers"].as_array().unwrap().len(), 2, "{list}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_stores_seen_workers_periodically() {
    let rig = rig().await;
    work(&rig, QUEUE, "w1").await;
    let mut database = rig.database.connect("test").await;
    eventually("the worker is written down", async || {
        let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM workers WHERE cardinality(recent_tasks) = 1");
        (count.fetch_one(&mut database).await.unwrap() == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_that_reports_shutdown_never_gets_its_task_again() {
    let rig = rig().await;
    let other = another(&rig, "other").await;
    let task = create(&rig, QUEUE).await;
    let claims = claim(&rig, QUEUE, "stops").await;
    let waiting = [rig.client(), client_of(&other)].map(|mut client| {
        let root = rig.root.clone();
        tokio::spawn(async move { claim_at(&mut client, &root, QUEUE, "stops", 1).await })
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (path, body) = (format!("{}/exception", run_of(&claims[0])), json!({"reason": "worker-shutdown"}));
    ok(call(&mut rig.client(), &credentials_of(&claims[0]), "POST", &path, Some(&body)).await);
    for waited in waiting {
        assert!(waited.await.unwrap().is_empty(), "the worker that stops got its own task again");
    }
    let status = rig.status(task.parse().unwrap()).await;
    assert_eq!((&status["state"], &status["retriesLeft"]), (&json!("pending"), &json!(4)), "{status}");
    assert_eq!(claim(&rig, QUEUE, "good").await.len(), 1);
    assert!(other.stop().await.success());
}
