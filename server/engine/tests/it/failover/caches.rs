//! What is cached is dropped when the database may have lost it.

use tenure_engine::background::low_water_marks as marks_pass;
use tenure_engine::testing::Queue;
use tenure_store::roles::{self, NewRole};
use tenure_store::testing::{TestDatabase, eventually};

fn role(scope: &str) -> NewRole {
    NewRole { role_id: "r".to_owned(), scopes: vec![scope.to_owned()], description: String::new() }
}

/// Whether who assumes the role has this scope, as the server caches roles.
fn gives(queue: &Queue, scope: &str) -> bool {
    let scopes = queue.engine.facts.roles.get().expand(["assume:r".to_owned()]).unwrap();
    scopes.iter().any(|given| given == scope)
}

#[tokio::test]
async fn a_role_that_was_lost_and_made_again_with_the_same_generation_is_read_again() {
    let database = TestDatabase::create().await;
    let queue = Queue::start(database.options());
    marks_pass::pass(&queue.engine).await.unwrap();
    roles::create(database.pool(), &role("lost")).await.unwrap();
    queue.engine.facts.look().await.unwrap();
    assert!(gives(&queue, "lost"));
    // A standby that has not received the role is promoted, and another role is made there: its generation is the same.
    let other =
        "ALTER TABLE roles DISABLE TRIGGER USER; UPDATE roles SET scopes = array_replace(scopes, 'lost', 'kept');
                 ALTER TABLE roles ENABLE TRIGGER USER;
                 SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = 'tenure' AND pid <> pg_backend_pid()";
    sqlx::raw_sql(other).execute(database.pool()).await.unwrap();
    queue.engine.facts.look().await.unwrap_or_default();
    assert!(gives(&queue, "lost"), "by its generation nothing has changed");
    eventually("the break is noticed", async || {
        // The first look finds the session lost, the next one connects again.
        drop(marks_pass::pass(&queue.engine).await);
        queue.engine.continuity.breaks() > 0
    })
    .await;
    queue.engine.facts.look().await.unwrap();
    assert!(gives(&queue, "kept") && !gives(&queue, "lost"));
    queue.stop().await;
    database.finish().await;
}
