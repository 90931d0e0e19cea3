//! Measurements of the database for the metrics.

use tenure_store::{clock, cluster, events, log_readers, settings};

use crate::support::*;

#[tokio::test]
async fn lag_and_age_of_log_are_measured() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    assert_eq!(events::get_oldest_age(&mut conn, 0).await.unwrap(), 0.0);
    for _ in 0..3 {
        queue.create_one(QUEUE).await;
    }
    queue.engine.sequencer.run(&mut conn).await.unwrap();
    run_sql(database.pool(), "UPDATE log_readers SET position = 2 WHERE name = 'groups'").await;
    let lags = log_readers::list_lags(&mut conn).await.unwrap();
    let lag = |reader: &str| lags.iter().find(|lag| lag.reader == reader).map(|lag| lag.events);
    assert_eq!((lag("groups"), lag("dependencies")), (Some(4), Some(6)), "{lags:?}");
    clock::advance(&mut conn, 100.0).await.unwrap();
    assert!(events::get_oldest_age(&mut conn, 0).await.unwrap() >= 100.0);
    run_sql(database.pool(), "UPDATE log_readers SET position = 0 WHERE name = 'groups'").await;
    finish(database, queue).await;
}

#[tokio::test]
async fn age_of_backup_is_known_after_first_one() {
    let (database, queue) = start().await;
    let mut conn = database.connect().await;
    assert_eq!(settings::find_backup_age(&mut conn).await.unwrap(), None);
    for _ in 0..2 {
        settings::note_backup(&mut conn).await.unwrap();
    }
    assert!(settings::find_backup_age(&mut conn).await.unwrap().is_some_and(|age| age >= 0.0));
    assert!(cluster::get_size(&mut conn).await.unwrap() > 0);
    finish(database, queue).await;
}
