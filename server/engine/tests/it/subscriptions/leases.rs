//! One server at a time sends a subscription. A replaced server changes nothing.

use tenure_store::subscriptions::sending::{self, Leased, Recorded};
use tenure_store::subscriptions::{Lease, SealedSecret};

use super::*;

const SILENCE: &str = "UPDATE subscriptions SET lease_until = clock_timestamp()";

async fn lease(conn: &mut PgConnection, server: Uuid) -> Option<Leased> {
    sending::lease(conn, server, &[]).await.unwrap().pop()
}

async fn advance_to(conn: &mut PgConnection, lease: &Lease, position: i64, in_flight: i64) -> bool {
    sending::advance(conn, lease, (position, in_flight), Recorded::Nothing).await.unwrap()
}

#[tokio::test]
async fn lease_goes_to_one_server_until_it_is_silent() {
    let mut ground = Ground::new().await;
    subscribe(&ground.queue).await;
    let (here, there) = (Uuid::new_v4(), Uuid::new_v4());
    let first = lease(&mut ground.conn, here).await.unwrap();
    assert_eq!(lease(&mut ground.conn, there).await.map(|leased| leased.lease), None);
    let running = [NAME.to_owned()];
    assert!(sending::lease(&mut ground.conn, here, &running).await.unwrap().is_empty());
    run_sql(&mut ground.conn, SILENCE).await;
    let second = lease(&mut ground.conn, there).await.unwrap();
    assert_eq!((second.lease.server, second.lease.term), (there, first.lease.term + 1));
    assert!(!advance_to(&mut ground.conn, &first.lease, 5, 5).await, "it was replaced");
    assert!(!sending::note_failure(&mut ground.conn, &first.lease, Duration::ZERO, "late").await.unwrap());
    assert!(advance_to(&mut ground.conn, &second.lease, second.lease.position, 7).await);
    sending::release(&mut ground.conn, &second.lease).await.unwrap();
    let third = lease(&mut ground.conn, here).await.unwrap();
    assert_eq!(third.lease.in_flight, 7, "the next server repeats the message");
    ground.finish().await;
}

#[tokio::test]
async fn lease_ends_if_the_clock_is_set_back() {
    let mut ground = Ground::new().await;
    subscribe(&ground.queue).await;
    let first = lease(&mut ground.conn, Uuid::new_v4()).await.unwrap();
    run_sql(&mut ground.conn, "UPDATE subscriptions SET lease_until = lease_until + interval '1 hour'").await;
    let second = lease(&mut ground.conn, Uuid::new_v4()).await.unwrap();
    assert_eq!(second.lease.term, first.lease.term + 1);
    ground.finish().await;
}

#[tokio::test]
async fn message_in_flight_is_composed_anew_for_another_filter() {
    let mut ground = Ground::new().await;
    subscribe(&ground.queue).await;
    let held = lease(&mut ground.conn, Uuid::new_v4()).await.unwrap().lease;
    assert!(advance_to(&mut ground.conn, &held, 0, 10).await);
    // The first PUT changes nothing.
    for (more, in_flight) in [(json!({}), 10), (json!({"batch": 2}), 0)] {
        let put = ops::Put { definition: definition(&more), secret: None, sealed_default: vec![], after: None };
        ops::put(ground.queue.engine.subscription_parts(), &ANN, NAME, put).await.unwrap();
        let held = lease(&mut ground.conn, Uuid::new_v4()).await.unwrap().lease;
        assert_eq!((held.position, held.in_flight), (0, in_flight), "{more}");
    }
    ground.finish().await;
}

#[tokio::test]
async fn lost_commit_ends_the_lease() {
    let mut ground = Ground::new().await;
    subscribe(&ground.queue).await;
    let mut held = lease(&mut ground.conn, Uuid::new_v4()).await.unwrap().lease;
    assert!(advance_to(&mut ground.conn, &held, 0, 10).await);
    held.in_flight = 10;
    // As after a failover to a standby that had not received this.
    run_sql(&mut ground.conn, "UPDATE subscriptions SET in_flight = 0").await;
    assert!(!advance_to(&mut ground.conn, &held, 10, 20).await);
    assert_eq!(stored(&ground.queue).await.position, 0);
    ground.finish().await;
}

#[tokio::test]
async fn change_and_suspension_end_the_lease() {
    let mut ground = Ground::new().await;
    subscribe(&ground.queue).await;
    for change in ["stored", "resumed", "deleted"] {
        let held = lease(&mut ground.conn, Uuid::new_v4()).await.unwrap().lease;
        let parts = ground.queue.engine.subscription_parts();
        let changed = match change {
            "stored" => try_put(&ground.queue, NAME, None).await.map(|_| ()),
            "resumed" => ops::resume(parts, &ANN, NAME, None).await.map(|_| ()),
            _ => ops::delete(parts, &ANN, NAME).await,
        };
        changed.unwrap();
        assert!(!advance_to(&mut ground.conn, &held, 0, 0).await, "{change}");
    }
    ground.finish().await;
}

#[tokio::test]
async fn changed_secret_signs_beside_the_one_before() {
    let mut ground = Ground::new().await;
    subscribe(&ground.queue).await;
    // The second is the same secret, encrypted again.
    for (byte, is_new) in [(2, true), (3, false)] {
        let secret = Some(SealedSecret { bytes: vec![byte], is_new });
        let put =
            ops::Put { definition: definition(&json!({"batch": 2})), secret, sealed_default: vec![], after: None };
        let parts = ground.queue.engine.subscription_parts();
        assert_eq!(ops::put(parts, &ANN, NAME, put).await.unwrap(), SecretUsed::Given);
    }
    let leased = lease(&mut ground.conn, Uuid::new_v4()).await.unwrap();
    assert_eq!((leased.secrets, leased.definition.batch), (vec![vec![3], vec![1]], 2));
    assert!(leased.previous_for > Duration::from_secs(23 * 3_600), "{:?}", leased.previous_for);
    run_sql(&mut ground.conn, "UPDATE subscriptions SET previous_until = clock_timestamp(), server = NULL").await;
    run_sql(&mut ground.conn, SILENCE).await;
    assert_eq!(lease(&mut ground.conn, Uuid::new_v4()).await.unwrap().secrets, [[3]]);
    ground.finish().await;
}
