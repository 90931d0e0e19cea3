//! The gate of features that older servers cannot carry out.

use sqlx::postgres::{PgConnectOptions, PgPool};
use tenure_engine::gate::{Gate, NEEDED};
use tenure_store::settings;

use crate::support::*;

impl Ground {
    async fn needed(&mut self) -> Option<String> {
        settings::find(&mut self.conn, settings::NEEDED_MIGRATION).await.unwrap()
    }
}

#[tokio::test]
async fn gate_opens_once_no_older_server_is_connected() {
    let mut ground = Ground::new().await;
    let before = ground.needed().await;
    let name = format!("tenure/{} tick", NEEDED - 1);
    let older = ground.database.options().clone().application_name(&name);
    let older = PgConnection::connect_with(&older).await.unwrap();
    let gate = ground.queue.engine.gate.clone();
    assert!(matches!(gate.open().await, Err(OpError::Conflict(_))));
    assert_eq!(ground.needed().await, before, "a refusal changes nothing");
    older.close().await.unwrap();
    eventually("the gate opens", async || gate.open().await.is_ok()).await;
    assert_eq!(ground.needed().await, Some(NEEDED.to_string()));
    // A failover lost the setting.
    settings::put(&mut ground.conn, settings::NEEDED_MIGRATION, "1").await.unwrap();
    gate.open().await.unwrap();
    assert_eq!(ground.needed().await.as_deref(), Some("1"), "an open gate asks nothing");
    ground.queue.engine.remembered.drop_all();
    let (first, second) = tokio::join!(gate.open(), gate.open());
    first.and(second).unwrap();
    assert_eq!(ground.needed().await, Some(NEEDED.to_string()));
    // A later release needs more.
    let later = (NEEDED + 1).to_string();
    settings::put(&mut ground.conn, settings::NEEDED_MIGRATION, &later).await.unwrap();
    ground.queue.engine.remembered.drop_all();
    gate.open().await.unwrap();
    assert_eq!(ground.needed().await, Some(later));
    ground.finish().await;
}

#[tokio::test]
async fn value_is_not_dropped_if_database_fails() {
    let pool = PgPool::connect_lazy_with(PgConnectOptions::new());
    pool.close().await;
    let gate = Gate::new(pool);
    let admitted = gate.admit(Some("failure")).await;
    assert!(matches!(admitted, Err(OpError::Unavailable)), "{admitted:?}");
    assert!(matches!(gate.admit(None::<&str>).await, Ok(None)), "a report without a failure asks nothing");
}
