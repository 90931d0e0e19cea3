//! Submissions of several tasks are atomic.

use tenure_domain::submit::{Defaults, Graph, Origin};
use tenure_engine::clock::real_now;
use tenure_engine::ops::submit::submit;

use crate::support::*;

/// The first random key collides with another queue's.
const COLLIDE: &str = "
    CREATE SEQUENCE draws;
    CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('draws') = 1 THEN
            NEW.id := (SELECT id FROM task_queues WHERE name = 'proj/known');
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER collide BEFORE INSERT ON task_queues FOR EACH ROW WHEN (NEW.name = 'proj/new')
        EXECUTE FUNCTION collide()";

#[tokio::test]
async fn colliding_queue_key_loses_no_task() {
    let (database, queue) = start().await;
    queue.key("proj/known").await;
    sqlx::raw_sql(COLLIDE).execute(database.pool()).await.unwrap();
    let body = json!({"tasks": [{"taskQueueId": "proj/new"}, {"taskQueueId": "proj/known"}]}).to_string();
    let defaults = Defaults::default();
    let origin = Origin { now: real_now(), client_id: "me", root_url: "https://tenure.example", defaults: &defaults };
    let draw = || TaskId::from_random(tenure_store::secrets::random());
    let graph = Graph::of_several(serde_json::from_str(&body).unwrap(), origin, draw).unwrap();
    let submitted = submit(queue.engine.submit_parts(), &graph, None).await.unwrap();
    assert_eq!(submitted.tasks.len(), graph.entries.len());
    for (entry, answered) in graph.entries.iter().zip(&submitted.tasks) {
        let answered = &answered.task;
        let stored = queue.status(entry.task.id).await;
        assert_eq!((answered.id, answered.seq), (stored.id, stored.seq));
        assert_eq!(stored.queue, entry.task.queue);
    }
    assert_eq!(number(database.pool(), "SELECT last_value FROM draws").await, 2, "the first key was taken");
    finish(database, queue).await;
}
