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

    /// Creates plain tasks at once. Returns the numbers of acknowledged and refused ones.
    async fn create_plain(&self, tasks: usize) -> (usize, usize) {
        count(&self.create_all(&plain(tasks)).await)
    }

    /// Creates 20 tasks while a worker claims two runs.
    async fn create_beside_claims(&self) {
        let claims = self.here.claim_work(QUEUE, "w", 2, Duration::ZERO);
        let (_, claimed) = tokio::join!(self.create_plain(20), claims);
        claimed.unwrap().delivery.delivered();
    }

    /// Counts events of reached backlog limits with these details, a pattern.
    async fn count_notes(&self, detail: &str) -> i64 {
        let sql = "SELECT count(*) FROM outbox_new WHERE kinds = '{14}' AND details[1] LIKE $1";
        sqlx::query_scalar(sql).bind(detail).fetch_one(self.database.pool()).await.unwrap()
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

fn plain(tasks: usize) -> Vec<NewTask> {
    (0..tasks).map(|_| new_task(QUEUE, &json!({}))).collect()
}

/// Counts acknowledged and refused creates.
fn count(answers: &[Result<Task, OpError>]) -> (usize, usize) {
    let full = |answer: &&Result<Task, OpError>| match answer {
        Err(OpError::BacklogFull(_)) => true,
        Ok(_) => false,
        Err(other) => panic!("{other:?}"),
    };
    let refused = answers.iter().filter(full).count();
    (answers.len() - refused, refused)
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
