//! Tests the column order of hot statements; the build checks the rest.

use std::time::Duration;

use tenure_api::bodies::CreateTaskRequest;
use tenure_api::ids::TaskId;
use tenure_domain::create::NewTask;
use uuid::Uuid;

use super::messages;
use super::pipeline::Pipeline;
use super::statement::{FromRow, Statement};
use crate::failure::{Class, classify, was_created_meanwhile};
use crate::testing::TestDatabase;
use crate::transitions::{claim, create, end, renew, schedule};
use tenure_domain::lifecycle::Report;
use tenure_domain::policy::ending::Ending;

async fn check<T: FromRow>(pipeline: &mut Pipeline, name: &str, statement: &Statement) {
    let described = pipeline.describe(statement).await.unwrap();
    let columns: Vec<&str> =
        described.columns().iter().map(|column| column.name().trim_end_matches(['!', '?'])).collect();
    assert_eq!(columns, T::COLUMNS, "{name}");
}

fn new_task() -> NewTask {
    let body = r#"{
        "taskQueueId": "a/b", "created": "2030-01-01T00:00:00.000Z", "deadline": "2030-01-02T00:00:00.000Z", "payload": {},
        "metadata": {"name": "n", "description": "d", "owner": "o@example.com", "source": "https://example.com/"}
    }"#;
    let request: CreateTaskRequest<'_> = serde_json::from_str(body).unwrap();
    NewTask::from_request(TaskId::from_random([7; 16]), &request).unwrap().accept().unwrap()
}

#[tokio::test]
async fn columns_are_in_order_of_fields() {
    let database = TestDatabase::create().await;
    let mut pipeline = database.connector().connect_pipeline().await.unwrap();
    let lease = Duration::from_secs(1);
    let (plain, task) = (create::statement(&[]), new_task());
    let general = create::statement(&[create::Member { task: &task, queue: 1, waits: true, ruled: false }]);
    assert_ne!(plain.text(), general.text());
    let one = create::statement(&[create::Member { task: &task, queue: 1, waits: false, ruled: false }]);
    assert!(![plain.text(), general.text()].contains(&one.text()));
    check::<create::StoredRow>(&mut pipeline, "create of some alone in their groups", &plain).await;
    check::<create::StoredRow>(&mut pipeline, "create of one alone in its group", &one).await;
    check::<create::StoredRow>(&mut pipeline, "create", &general).await;
    let others = [[8; 16], [9; 16]].map(|id| NewTask { id: TaskId::from_random(id), ..new_task() });
    let others = others.each_ref().map(|task| create::Member { task, queue: 1, waits: false, ruled: false });
    let grouped = create::statement_of_all(&others, create::Ids::Given).unwrap();
    assert!(![plain.text(), one.text(), general.text()].contains(&grouped.text()));
    check::<create::StoredRow>(&mut pipeline, "create of all in one group", &grouped).await;
    let alone = create::Member { task: &task, queue: 1, waits: false, ruled: false };
    assert_eq!(create::statement_of_all(&[alone], create::Ids::Drawn).unwrap().text(), one.text());
    let waiting = create::Member { waits: true, ..others[0] };
    assert!(create::statement_of_all(&[others[1], waiting], create::Ids::Drawn).is_none());
    let dependents = create::statement_of_dependents(&[]);
    check::<create::StoredRow>(&mut pipeline, "create of dependents", &dependents).await;
    check::<end::Resolved>(&mut pipeline, "end for good", &end::statement(&[], &[])).await;
    let reported = end::Member::new(Uuid::nil(), 0, Ending::Reported(Report::Completed));
    check::<end::Resolved>(&mut pipeline, "end of one for good", &end::statement(&[reported], &[])).await;
    let expired = end::Member::new(Uuid::nil(), 0, Ending::LeaseExpired);
    check::<end::Resolved>(&mut pipeline, "end", &end::statement(&[expired], &[])).await;
    let dependents = schedule::schedule_dependents(&[]);
    check::<schedule::Scheduled>(&mut pipeline, "schedule dependents", &dependents).await;
    check::<renew::Renewed>(&mut pipeline, "renew", &renew::statement(&[], lease)).await;
    let want = claim::Want { queue: 1, name: "q", epoch: 0, marks: [0; claim::PRIORITIES], slots: vec![1] };
    check::<claim::Claimed>(&mut pipeline, "claim of one", &claim::statement(&[want], &[], lease, Uuid::nil())).await;
    check::<claim::Claimed>(&mut pipeline, "claim", &claim::statement(&[], &[], lease, Uuid::nil())).await;
    check::<messages::GotRow>(&mut pipeline, "get", &messages::get_statement(&[], &[], &[], lease)).await;
    check::<messages::OutcomeRow>(&mut pipeline, "delete", &messages::delete_statement(&[], lease)).await;
    drop(pipeline);
    database.finish().await;
}

#[tokio::test]
async fn statements_commit_together_or_not_at_all() {
    let database = TestDatabase::create().await;
    let mut pipeline = database.connector().connect_pipeline().await.unwrap();
    sqlx::query("CREATE TABLE written (what bigint)").execute(database.pool()).await.unwrap();
    let insert = |what: i64| Statement::new("INSERT INTO written VALUES (100 / $1::bigint)").with(&what);
    let undone = pipeline.run(&[insert(1), insert(0), insert(2)]).await.unwrap_err();
    assert_eq!((undone.at, classify(&undone.error)), (Some(1), Class::BadData), "{}", undone.error);
    let count = "SELECT count(*) FROM written";
    assert_eq!(crate::testing::number(database.pool(), count).await, 0);
    assert_eq!(pipeline.run(&[insert(1), insert(2)]).await.unwrap().len(), 2);
    assert_eq!(crate::testing::number(database.pool(), count).await, 2);
    // Fails only at the commit.
    sqlx::query("ALTER TABLE written ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
        .execute(database.pool())
        .await
        .unwrap();
    let undone = pipeline.run(&[insert(4), insert(4)]).await.unwrap_err();
    assert_eq!((undone.at, classify(&undone.error)), (None, Class::BadData), "{}", undone.error);
    assert_eq!(crate::testing::number(database.pool(), count).await, 2);
    let group = || Statement::new("INSERT INTO task_groups VALUES ($1, '-', now())").with(&Uuid::nil());
    let undone = pipeline.run(&[group(), group()]).await.unwrap_err();
    assert!(was_created_meanwhile(&undone.error), "{}", undone.error);
    drop(pipeline);
    database.finish().await;
}
