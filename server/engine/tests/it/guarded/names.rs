//! Unique names.

use super::*;

#[tokio::test]
async fn z1_one_of_fifty_creates_gets_the_name() {
    let pair = Pair::start().await;
    for round in 0..6 {
        let name = format!("nightly {round}");
        let tasks: Vec<NewTask> = (0..50).map(|_| named(&json!({ "unique": name }))).collect();
        let answers = pair.create_all(&tasks).await;
        let created: Vec<TaskId> = answers.iter().flatten().map(|task| task.id).collect();
        assert_eq!(created.len(), 1, "round {round}");
        let holders: Vec<TaskId> = answers.iter().filter_map(holder).collect();
        assert_eq!(holders, vec![created[0]; 49]);
        // Repeats are answered by their task, whoever asks.
        let winner = tasks.iter().find(|task| task.id == created[0]).unwrap();
        for server in [&pair.here, &pair.there] {
            assert_eq!(server.create(winner).await.unwrap().id, created[0]);
        }
    }
    assert_eq!(number(pair.database.pool(), "SELECT count(*) FROM tasks").await, 6);
    pair.finish().await;
}

#[tokio::test]
async fn z2_duplicate_is_rejected_coalesced_or_queued() {
    let pair = Pair::start().await;
    let first = named(&json!({"unique": "n"}));
    pair.here.create(&first).await.unwrap();
    let claim = pair.here.claim_one(QUEUE).await;
    for on_duplicate in ["reject", "coalesce"] {
        let answer = pair.there.create(&named(&json!({"unique": "n", "onDuplicate": on_duplicate}))).await;
        assert_eq!(holder(&answer), Some(first.id), "{on_duplicate}");
    }
    // The policy of the queue decides for tasks without the option.
    put(&pair.here, json!({"onDuplicate": "queue"})).await;
    let second = named(&json!({"unique": "n"}));
    assert_eq!(pair.there.create(&second).await.unwrap().status().state.as_str(), "unscheduled");
    let rejected = pair.here.create(&named(&json!({"unique": "n", "onDuplicate": "reject"}))).await;
    assert_eq!(holder(&rejected), Some(first.id));
    let third = named(&json!({"unique": "n"}));
    pair.here.create(&third).await.unwrap();
    for change in [Change::Schedule, Change::Rerun] {
        let refused = super::change(&pair.here, second.id, change).await;
        assert!(matches!(refused, Err(OpError::Conflict(_) | OpError::Duplicate(_))), "{change:?}: {refused:?}");
    }
    assert_eq!(pair.here.claim_work(QUEUE, "w", 9, Duration::ZERO).await.unwrap().claims.len(), 0);
    assert!(pair.here.get_messages(QUEUE, 9).await.is_empty());
    // The middle of three is cancelled: the third still waits for the first.
    change(&pair.here, second.id, Change::Cancel).await.unwrap();
    settle(&pair.here).await;
    assert_eq!(state(&pair.here, third.id).await, "unscheduled");
    pair.here.report(first.id, claim.run, Report::Completed).await.unwrap();
    eventually("the third is pending", async || {
        settle(&pair.here).await;
        state(&pair.here, third.id).await == "pending"
    })
    .await;
    pair.finish().await;
}

#[tokio::test]
async fn z3_name_is_free_once_its_task_has_ended() {
    let pair = Pair::start().await;
    let mut before = None;
    for end in ["completed", "failed", "canceled", "deadline"] {
        let task = named(&json!({"unique": "n"}));
        pair.here.create(&task).await.unwrap();
        let other = named_with(&json!({"unique": "n"}), &json!({"schedulerId": format!("other-{end}")}));
        pair.there.create(&other).await.unwrap();
        change(&pair.here, other.id, Change::Cancel).await.unwrap();
        if let Some(before) = before {
            let answer = change(&pair.there, before, Change::Rerun).await;
            assert_eq!(holder(&answer), Some(task.id), "a rerun needs the name");
        }
        match end {
            "completed" => complete(&pair.here, task.id).await,
            "failed" => {
                let claim = pair.here.claim_one(QUEUE).await;
                pair.here.report(task.id, claim.run, Report::Failed).await.unwrap();
            }
            "canceled" => drop(change(&pair.here, task.id, Change::Cancel).await.unwrap()),
            _ => {
                advance(&pair.database, "2 hours").await;
                pair.here.run_pass("deadlines").await.unwrap();
                assert_eq!(state(&pair.here, task.id).await, "exception");
                break;
            }
        }
        before = Some(task.id);
    }
    pair.finish().await;
}

#[tokio::test]
async fn rerun_takes_the_name_again() {
    let pair = Pair::start().await;
    let first = named(&json!({"unique": "n"}));
    pair.here.create(&first).await.unwrap();
    complete(&pair.here, first.id).await;
    change(&pair.there, first.id, Change::Rerun).await.unwrap();
    let refused = pair.here.create(&named(&json!({"unique": "n"}))).await;
    assert_eq!(holder(&refused), Some(first.id));
    complete(&pair.here, first.id).await;
    pair.here.create(&named(&json!({"unique": "n"}))).await.unwrap();
    pair.finish().await;
}

#[tokio::test]
async fn dependency_that_holds_the_name_has_one_edge() {
    let pair = Pair::start().await;
    let first = named(&json!({"unique": "n"}));
    pair.here.create(&first).await.unwrap();
    let second = named_with(&json!({"unique": "n", "onDuplicate": "queue"}), &json!({"dependencies": [first.id]}));
    pair.here.create(&second).await.unwrap();
    let edges = "SELECT count(*) FROM dependencies WHERE fixed AND NOT any_end AND NOT satisfied";
    assert_eq!(number(pair.database.pool(), edges).await, 1);
    complete(&pair.here, first.id).await;
    eventually("the second is pending", async || {
        settle(&pair.here).await;
        state(&pair.here, second.id).await == "pending"
    })
    .await;
    pair.finish().await;
}

#[tokio::test]
async fn name_has_at_most_a_hundred_tasks() {
    let pair = Pair::start().await;
    let options = json!({"unique": "n", "onDuplicate": "queue"});
    for _ in 0..100 {
        pair.here.create(&named(&options)).await.unwrap();
    }
    let crowded = pair.there.create(&named(&options)).await;
    assert!(matches!(crowded, Err(OpError::Conflict(_))), "{crowded:?}");
    pair.finish().await;
}

#[tokio::test]
async fn names_are_purged_with_their_last_task() {
    let pair = Pair::start().await;
    put(&pair.here, json!({"retain": {"completed": 60}})).await;
    let names = "SELECT count(*) FROM unique_names";
    for _ in 0..2 {
        let task = named(&json!({"unique": "n"}));
        pair.here.create(&task).await.unwrap();
        complete(&pair.here, task.id).await;
        pair.here.passes.run_all_due().await.unwrap();
    }
    assert_eq!(number(pair.database.pool(), names).await, 1, "updated in place");
    advance(&pair.database, "61 seconds").await;
    pair.here.passes.run_all_due().await.unwrap();
    assert_eq!(number(pair.database.pool(), "SELECT count(*) FROM tasks").await, 0);
    assert_eq!(number(pair.database.pool(), names).await, 0);
    pair.here.create(&named(&json!({"unique": "n"}))).await.unwrap();
    pair.finish().await;
}
