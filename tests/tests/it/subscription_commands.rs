//! `tenure subscription` as people run it, with a real server.

use serde_json::json;
use tenure_tests::webhooks::{Manner, Receiver};

use crate::policy_commands::{answer, done, run};
use crate::rig::{ok, refusal, stdout};
use crate::subscriptions::{allowed, path};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_is_set_shown_tested_and_deleted() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    let missing = refusal(&run(&rig, &["subscription", "show", "billing"]).await, 1);
    assert!(missing.contains("(404 ResourceNotFound)"), "{missing}");
    let url = receiver.url();
    let set = ["subscription", "set", "billing", "--url", &url, "--exchange", "task-completed", "--batch", "10"];
    let shown = done(&rig, &set).await;
    for line in ["subscription    billing\n", "exchanges       task-completed\n", "secret          whsec_"] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    let shown = answer(&rig, &["subscription", "show", "billing"]).await;
    let direct = ok(rig.call("GET", &path("billing"), None).await);
    assert_eq!((&shown["to"], &shown["batch"]), (&direct["to"], &json!(10)));
    assert_eq!(shown["to"]["webhook"]["secret"], "***");
    let table = done(&rig, &["subscription", "list"]).await;
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("billing       active")), "{table}");

    let tested = done(&rig, &["subscription", "test", "billing"]).await;
    assert!(tested.starts_with("The receiver accepted the message with status 204"), "{tested}");
    receiver.set(Manner::Answers(500));
    let refused = run(&rig, &["subscription", "test", "billing"]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(stdout(&refused).contains("the receiver answered 500"), "{refused:?}");

    let resumed = done(&rig, &["subscription", "resume", "billing", "--after", "latest"]).await;
    assert!(resumed.starts_with("Subscription billing continues after position "), "{resumed}");
    assert_eq!(done(&rig, &["subscription", "delete", "billing"]).await, "Subscription billing is deleted.\n");
    assert_eq!(answer(&rig, &["subscription", "list"]).await, json!({"subscriptions": []}));
}
