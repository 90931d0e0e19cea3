//! The audit, as the client asks for it.

use tenure_client::{AuditFilter, Timestamp};

use crate::consumer::client;
use crate::queue::Queue;

#[tokio::test]
async fn audit_is_filtered_and_paged() {
    let queue = Queue::start().await;
    let client = client(&queue);
    client.list_audit(&AuditFilter::default(), None).await.unwrap();
    let after: Timestamp = serde_json::from_str("\"2027-01-31T12:00:00.000Z\"").unwrap();
    let filter = AuditFilter {
        client_id: Some("acme/ops".to_owned()),
        kind: Some("task".to_owned()),
        object: Some("a b".to_owned()),
        action: Some("cancelTask".to_owned()),
        after: Some(after),
        limit: Some(5),
    };
    client.list_audit(&filter, Some("MQ")).await.unwrap();
    let calls: Vec<(String, String)> =
        queue.requests("").into_iter().map(|request| (request.call, request.query)).collect();
    let full = "client=acme%2Fops&kind=task&object=a%20b&action=cancelTask&after=2027-01-31T12%3A00%3A00.000Z&limit=5\
                &continuationToken=MQ";
    let path = "GET /api/tenure/v1/audit";
    assert_eq!(calls, ["", full].map(|query| (path.to_owned(), query.to_owned())));
}
