//! Guarded creates: unique names and backlog limits, on two servers with one database. Rows Z1 to Z3
//! and T14.

mod attacks;
mod backlog;
mod bytes;
mod names;
mod submissions;

use tenure_engine::background::dependencies as dependency_pass;
use tenure_engine::ops::guarded::{self, Locking, Made, Wanted};

use crate::support::*;

/// Two servers.
struct Pair {
    database: TestDatabase,
    here: Queue,
    there: Queue,
}

impl Pair {
    async fn start() -> Self {
        let (database, here) = start().await;
        let there = Queue::start(database.options());
        Self { database, here, there }
    }

    fn server(&self, n: usize) -> &Queue {
        if n.is_multiple_of(2) { &self.here } else { &self.there }
    }

    /// Creates tasks at once, on the servers in turn.
    async fn create_all(&self, tasks: &[NewTask]) -> Vec<Result<Task, OpError>> {
        join_all(tasks.iter().enumerate().map(|(n, task)| self.server(n).create(task))).await
    }

    async fn finish(self) {
        settle(&self.here).await;
        self.there.stop().await;
        finish(self.database, self.here).await;
    }
}

async fn settle(queue: &Queue) {
    while dependency_pass::pass(&queue.engine).await.unwrap().done > 0 {}
}

fn named(options: &Value) -> NewTask {
    named_with(options, &json!({}))
}

fn named_with(options: &Value, fields: &Value) -> NewTask {
    let mut fields = fields.clone();
    fields["extra"] = json!({ "tenure": options });
    new_task(QUEUE, &fields)
}

fn holder(answer: &Result<Task, OpError>) -> Option<TaskId> {
    match answer {
        Err(OpError::Duplicate(duplicate)) => Some(duplicate.holder),
        Ok(_) => None,
        Err(other) => panic!("{other:?}"),
    }
}

async fn state(queue: &Queue, task: TaskId) -> String {
    queue.status(task).await.status().state.as_str().to_owned()
}

async fn complete(queue: &Queue, task: TaskId) {
    let claim = queue.claim_one(QUEUE).await;
    assert_eq!(claim.task.id, task);
    queue.report(task, claim.run, Report::Completed).await.unwrap();
}

async fn pending(database: &TestDatabase) -> i64 {
    number(database.pool(), "SELECT count(*) FROM pending").await
}
