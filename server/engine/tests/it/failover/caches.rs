//! Caches are invalidated when the database may have lost their source.

use tenure_engine::batch::session::Session;
use tenure_store::connector::Connector;
use tenure_store::continuity::Incarnation;
use tenure_store::roles::{self, NewRole};
use tenure_store::session::{self, Locks};

use crate::support::*;

fn role(scope: &str) -> NewRole {
    NewRole { role_id: "r".to_owned(), scopes: vec![scope.to_owned()], description: String::new() }
}

/// True if the server's cached roles give this scope.
fn gives(queue: &Queue, scope: &str) -> bool {
    let scopes = queue.engine.facts.roles.get().expand(["assume:r".to_owned()]).unwrap();
    scopes.iter().any(|given| given == scope)
}

#[tokio::test]
async fn recreated_role_with_same_generation_is_reread() {
    let (database, queue) = start().await;
    queue.run_pass("low_water_marks").await.unwrap();
    roles::create(database.pool(), &role("lost")).await.unwrap();
    queue.engine.facts.refresh().await.unwrap();
    assert!(gives(&queue, "lost"));
    // A standby without the role is promoted, and another role with the same generation is created.
    let other =
        "ALTER TABLE roles DISABLE TRIGGER USER; UPDATE roles SET scopes = array_replace(scopes, 'lost', 'kept');
                 ALTER TABLE roles ENABLE TRIGGER USER;
                 SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name ~ '^tenure/[0-9]+$' AND pid <> pg_backend_pid()";
    sqlx::raw_sql(other).execute(database.pool()).await.unwrap();
    queue.engine.facts.refresh().await.unwrap_or_default();
    assert!(gives(&queue, "lost"), "the generation is unchanged");
    eventually("the break is noticed", async || {
        // The first scan finds the session lost.
        drop(queue.run_pass("low_water_marks").await);
        queue.engine.continuity.breaks() > 0
    })
    .await;
    queue.engine.facts.refresh().await.unwrap();
    assert!(gives(&queue, "kept") && !gives(&queue, "lost"));
    finish(database, queue).await;
}

/// As if another database had responded before.
fn note_another_database(connector: &Connector) {
    connector.continuity().connected(Incarnation { timeline: 99, started: 0 }, || ());
}

#[tokio::test]
async fn connections_to_replaced_database_are_closed() {
    let database = TestDatabase::create().await;
    let connector = database.connector();
    let (pool, mut session) = (connector.pool(), Session::new(connector.clone()));
    let pooled = session::get_backend(&mut *pool.acquire().await.unwrap()).await.unwrap();
    session.run(async |conn| session::get_backend(conn).await).await.unwrap();
    assert_eq!(session::get_backend(&mut *pool.acquire().await.unwrap()).await.unwrap(), pooled, "it is kept");
    session.run(async |conn| session::get_backend(conn).await).await.unwrap();
    assert_eq!(session.connections(), 1);

    note_another_database(&connector);
    let new = connector.connect_hot(Locks::Waits).await.unwrap();
    assert_ne!(session::get_backend(&mut *pool.acquire().await.unwrap()).await.unwrap(), pooled);
    session.run(async |conn| session::get_backend(conn).await).await.unwrap();
    assert_eq!(session.connections(), 2);
    drop(new);
    session.close().await;
    pool.close().await;
    database.finish().await;
}
