//! Races against names and limits, each forced by locks that a test holds.

use super::*;

/// Creates in one transaction, as a stored cause does, and returns it uncommitted.
pub(super) async fn create_in<'a>(
    conn: &'a mut PgConnection,
    queue: &Queue,
    tasks: &[NewTask],
    locking: Locking,
) -> (sqlx::Transaction<'a, sqlx::Postgres>, Vec<Made>) {
    let key = queue.key(QUEUE).await;
    let wanted: Vec<Wanted<'_>> = tasks.iter().map(|task| Wanted { task, queue: key }).collect();
    let mut transaction = conn.begin().await.unwrap();
    let sequenced = queue.engine.sequencer.reached();
    let mut effects = tenure_engine::notifiers::Effects::default();
    let made = guarded::create(&mut transaction, sequenced, &wanted, locking, &mut effects).await.unwrap();
    (transaction, made)
}

#[tokio::test]
async fn batch_with_one_name_twice_creates_one() {
    let pair = Pair::start().await;
    let mut conn = pair.database.connect().await;
    let tasks = [named(&json!({"unique": "n"})), named(&json!({"unique": "n"}))];
    let (transaction, made) = create_in(&mut conn, &pair.here, &tasks, Locking::Tries).await;
    transaction.commit().await.unwrap();
    let [Made::Created(first), Made::Refused(OpError::Duplicate(duplicate))] = made.as_slice() else {
        panic!("{made:?}")
    };
    assert_eq!(duplicate.holder, first.id);
    let queued = json!({"unique": "m", "onDuplicate": "queue"});
    let (transaction, made) = create_in(&mut conn, &pair.here, &[named(&queued), named(&queued)], Locking::Tries).await;
    transaction.commit().await.unwrap();
    assert!(matches!(made.as_slice(), [Made::Created(_), Made::Again]), "{made:?}");
    pair.finish().await;
}

#[tokio::test]
async fn uncommitted_holder_makes_others_wait() {
    let pair = Pair::start().await;
    let mut conn = pair.database.connect().await;
    let first = named(&json!({"unique": "n"}));
    let (transaction, made) = create_in(&mut conn, &pair.here, std::slice::from_ref(&first), Locking::Waits).await;
    assert!(matches!(made.as_slice(), [Made::Created(_)]), "{made:?}");
    let second = named(&json!({"unique": "n"}));
    let commit = async {
        until_a_session_waits(pair.database.pool()).await;
        transaction.commit().await.unwrap();
    };
    let (answer, ()) = tokio::join!(pair.there.create(&second), commit);
    assert_eq!(holder(&answer), Some(first.id));
    pair.finish().await;
}

#[tokio::test]
async fn killed_creator_leaves_no_name() {
    let pair = Pair::start().await;
    let mut conn = pair.database.connect().await;
    let first = named(&json!({"unique": "n"}));
    let (transaction, _) = create_in(&mut conn, &pair.here, std::slice::from_ref(&first), Locking::Waits).await;
    drop(transaction);
    conn.close().await.unwrap();
    pair.there.create(&named(&json!({"unique": "n"}))).await.unwrap();
    pair.finish().await;
}

#[tokio::test]
async fn rerun_and_create_never_both_get_the_name() {
    let pair = Pair::start().await;
    for round in 0..20 {
        let options = json!({ "unique": format!("n{round}") });
        let first = named(&options);
        pair.here.create(&first).await.unwrap();
        complete(&pair.here, first.id).await;
        let second = named(&options);
        let (rerun, created) = tokio::join!(change(&pair.here, first.id, Change::Rerun), pair.there.create(&second));
        let winners = [&rerun, &created].into_iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(winners, 1, "round {round}: {rerun:?} {created:?}");
        for task in [first.id, second.id] {
            drop(change(&pair.here, task, Change::Cancel).await);
        }
    }
    pair.finish().await;
}

#[tokio::test]
async fn coalesced_entry_shares_the_fate_of_its_holder() {
    let pair = Pair::start().await;
    let first = named(&json!({"unique": "n"}));
    pair.here.create(&first).await.unwrap();
    let key = pair.here.key(QUEUE).await;
    let coalesced = named(&json!({"unique": "n", "onDuplicate": "coalesce"}));
    let wanted = [Wanted { task: &coalesced, queue: key }];
    let mut conn = pair.database.connect().await;
    // The holder is cancelled after a look without locks: the refusal is of before.
    let first_look = guarded::look(&mut conn, Sequenced::default(), &wanted).await.unwrap();
    change(&pair.there, first.id, Change::Cancel).await.unwrap();
    let refused = first_look.refuse_all(&wanted).unwrap();
    assert!(matches!(refused.as_slice(), [Made::Refused(OpError::Duplicate(_))]), "{refused:?}");
    pair.there.create(&coalesced).await.unwrap();
    pair.finish().await;
}

#[tokio::test]
async fn purge_beside_a_create_keeps_its_name() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"retain": {"completed": 60}})).await;
    let first = named(&json!({"unique": "n"}));
    pair.here.create(&first).await.unwrap();
    complete(&pair.here, first.id).await;
    pair.here.passes.run_all_due().await.unwrap();
    advance(&pair.database, "61 seconds").await;
    let mut conn = pair.database.connect().await;
    let second = named(&json!({"unique": "n"}));
    let (transaction, made) = create_in(&mut conn, &pair.here, std::slice::from_ref(&second), Locking::Waits).await;
    assert!(matches!(made.as_slice(), [Made::Created(_)]), "{made:?}");
    // The row is locked: the purge skips it, and waits for nothing.
    pair.here.run_pass("expiry").await.unwrap();
    transaction.commit().await.unwrap();
    let third = pair.there.create(&named(&json!({"unique": "n"}))).await;
    assert_eq!(holder(&third), Some(second.id));
    pair.finish().await;
}
