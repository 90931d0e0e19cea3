//! Subscriptions, as the client sends them.

use serde_json::json;
use tenure_client::After;

use crate::consumer::client;
use crate::queue::{Queue, ok};

const PATH: &str = "/api/tenure/v1/subscriptions";

#[tokio::test]
async fn subscriptions_are_stored_tested_resumed_and_deleted() {
    let queue = Queue::start().await;
    queue.on("/a%2Fb", |_| ok(json!({"name": "billing"})));
    let client = client(&queue);
    let wanted = json!({"to": {"webhook": {"url": "https://example.com/"}}, "batch": 100});
    assert_eq!(client.set_subscription("a/b", &wanted).await.unwrap()["name"], "billing");
    client.get_subscription("billing").await.unwrap();
    client.list_subscriptions().await.unwrap();
    client.test_subscription("billing").await.unwrap();
    for after in [None, Some(After::Latest), Some(After::Position(7))] {
        client.resume_subscription("billing", after).await.unwrap();
    }
    client.delete_subscription("billing").await.unwrap();
    let requests = queue.requests("");
    let calls: Vec<&str> = requests.iter().map(|request| request.call.as_str()).collect();
    let resume = format!("POST {PATH}/billing/resume");
    let expected = [
        format!("PUT {PATH}/a%2Fb"),
        format!("GET {PATH}/billing"),
        format!("GET {PATH}"),
        format!("POST {PATH}/billing/test"),
        resume.clone(),
        resume.clone(),
        resume,
        format!("DELETE {PATH}/billing"),
    ];
    assert_eq!(calls, expected);
    assert_eq!(requests[0].body, wanted);
    assert_eq!((&requests[5].body, &requests[6].body), (&json!({"after": "latest"}), &json!({"after": 7})));
}
