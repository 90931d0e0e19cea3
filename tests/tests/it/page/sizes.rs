//! Pages of a full server stay small.

use super::{log_in, sql};
use crate::rig::{Raw, Rig, eventually};

const BYTES_MAX: usize = 60_000;
const FULL: &str = "
    INSERT INTO task_queues (name) SELECT 'load/queue-' || n FROM generate_series(1, 1000) n;
    INSERT INTO queue_views (queue, name, last_seen, expires)
        SELECT id, name, now(), now() + interval '5 days' FROM task_queues WHERE name LIKE 'load/%';
    INSERT INTO workers (queue, worker_group, worker_id, first_claim, last_seen, expires, due)
        SELECT id, 'frankfurt', 'worker-' || n, now(), now(), now() + interval '1 day', now() + interval '1 day'
        FROM task_queues CROSS JOIN LATERAL generate_series(1, CASE name WHEN 'load/queue-1' THEN 1000 ELSE 2 END) n
        WHERE name LIKE 'load/%';
    INSERT INTO roles (role_id, scopes, description, created, last_modified)
        SELECT 'load-' || n, ARRAY['queue:create-task:low:load/*'], 'Submits tasks.', now(), now()
        FROM generate_series(1, 1000) n;";

/// Without tokens, which no server starts with.
const CLIENTS: &str = "
    INSERT INTO clients (client_id, token, scopes)
        SELECT 'load/client-' || n, '', ARRAY['queue:claim-work:load/*', 'assume:load'] FROM generate_series(1, 1000) n;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_a_full_server_stay_small() {
    let rig = Rig::start().await;
    sql(&rig, FULL).await;
    let root = log_in(&rig, &rig.root).await;
    // Counts the workers at its start.
    let another = rig.another("another").await;
    let look = async |path: &str| Raw::new("GET", path).header("Cookie", &root).send(another.root_url()).await;
    eventually("the workers are counted", async || look("/workers").await.text().contains("20 of 1000").then_some(()))
        .await;
    sql(&rig, CLIENTS).await;
    for (path, part) in [
        ("/workers", "load/queue-"),
        ("/workers?queue=load/queue-1", "50 of 1000"),
        ("/worker/frankfurt/worker-1", "20 of 1000 queues"),
        ("/access", "The next ones"),
        ("/access?scope=queue%3Aclaim-work%3Aload%2Fqueue-1", " clients"),
        ("/client/load%2Fclient-7", "assume:load"),
        ("/system", "Background passes"),
    ] {
        let page = look(path).await;
        assert!(page.text().contains(part), "{path} lacks {part}: {}", page.text());
        assert!(page.body.len() <= BYTES_MAX, "{path} has {} bytes", page.body.len());
    }
    another.stop().await;
}
