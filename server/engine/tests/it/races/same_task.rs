//! Several members that name the same task.

use crate::support::*;

#[tokio::test]
async fn first_of_two_reports_in_batch_wins() {
    for loops in [1, 3] {
        let database = TestDatabase::create().await;
        let queue = Queue::start_with_loops(database.options(), loops);
        queue.create_one(QUEUE).await;
        let claim = queue.claim_one(QUEUE).await;
        let (task, run) = (claim.task.id, claim.run);
        let (first, repeat, other) = tokio::join!(
            queue.report(task, run, Report::Completed),
            queue.report(task, run, Report::Completed),
            queue.report(task, run, Report::Failed),
        );
        assert_eq!(first.unwrap().ended.len(), 1);
        assert_eq!(repeat.unwrap().ended.len(), 1);
        assert!(matches!(other, Err(OpError::Conflict(_))), "{other:?}");
        finish(database, queue).await;
    }
}

#[tokio::test]
async fn first_of_two_creates_of_same_id_wins() {
    for loops in [1, 3] {
        let database = TestDatabase::create().await;
        let queue = Queue::start_with_loops(database.options(), loops);
        queue.key(QUEUE).await;
        let task = new_task(QUEUE, &json!({}));
        let mut other = new_task_with_id(task.id, QUEUE, &json!({}));
        other.definition = other.definition.replace("\"n\"", "\"another\"");
        let (first, repeat, different) = tokio::join!(queue.create(&task), queue.create(&task), queue.create(&other));
        assert_eq!(first.unwrap().id, task.id);
        assert_eq!(repeat.unwrap().id, task.id);
        assert!(matches!(different, Err(OpError::Conflict(_))), "{different:?}");
        assert_eq!(number(database.pool(), "SELECT count(*) FROM pending").await, 1);
        finish(database, queue).await;
    }
}

#[tokio::test]
async fn create_waits_for_the_same_id_on_another_server() {
    for name in ["\"n\"", "\"another\""] {
        let (database, queue) = start().await;
        let task = new_task(QUEUE, &json!({}));
        let mut repeat = task.clone();
        repeat.definition = task.definition.replace("\"n\"", name);
        let mut conn = database.connect().await;
        let mut first = conn.begin().await.unwrap();
        create_on(&mut first, &queue, std::slice::from_ref(&task)).await;
        let committed = async {
            until_a_session_waits(database.pool()).await;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            first.commit().await.unwrap();
        };
        let (second, ()) = tokio::join!(queue.create(&repeat), committed);
        if repeat.definition == task.definition {
            assert_eq!(second.unwrap().id, task.id);
        } else {
            assert!(matches!(second, Err(OpError::Conflict(_))), "{second:?}");
        }
        finish(database, queue).await;
    }
}
