//! Subscriptions on the overview.

use serde_json::Value;
use tenure_tests::http::TENURE_API;
use tenure_tests::webhooks::{Manner, Receiver};

use super::{form_token, get, hides, log_in, own_form, shows};
use crate::rig::{Rig, eventually, ok};
use crate::subscriptions::{allowed, path, subscribe, to};

async fn state(rig: &Rig) -> Value {
    ok(rig.call("GET", &path("billing"), None).await)["state"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overview_shows_suspended_subscription_and_resumes_it() {
    let (rig, receiver) = (allowed().await, Receiver::start().await);
    subscribe(&rig, &to(&receiver)).await;
    let root = log_in(&rig, &rig.root).await;
    eventually("the subscription is known to the page", async || {
        let page = get(&rig, "/", Some(&root)).await;
        page.text().contains("Subscriptions</h2>").then_some(())
    })
    .await;
    hides(&get(&rig, "/", Some(&root)).await, &["/subscription/billing/resume"]);
    receiver.set(Manner::Answers(410));
    rig.create_one("hooks/linux").await;
    let claims = rig.claim("hooks/linux", 1).await;
    rig.report(&claims[0], "completed", None).await;
    eventually("it is suspended", async || (state(&rig).await == "suspended").then_some(())).await;
    let page = get(&rig, "/", Some(&root)).await;
    shows(&page, &["the receiver answered 410", ">suspended</span>", "/subscription/billing/resume"]);
    hides(&get(&rig, "/", None).await, &["billing"]);
    let looker = rig.make_client("looker", &["tenure:list-subscriptions"]).await;
    let looker = get(&rig, "/", Some(&log_in(&rig, &looker).await)).await;
    shows(&looker, &["disabled>Resume</button> needs <code>tenure:manage-subscription:billing</code>"]);
    hides(&looker, &["/subscription/billing/resume"]);

    let token = form_token(&page.text()).to_owned();
    let resuming = "/subscription/billing/resume";
    let without_login = own_form(&rig, resuming, &[("token", token.as_str())]);
    assert_eq!(rig.send(&without_login).await.status, 403);
    let wrong = own_form(&rig, resuming, &[("token", "wrong")]).header("Cookie", &root);
    assert_eq!(rig.send(&wrong).await.status, 403);
    assert_eq!(state(&rig).await, "suspended");
    receiver.set(Manner::Accepts);
    let form = own_form(&rig, resuming, &[("token", token.as_str())]).header("Cookie", &root);
    let reply = rig.send(&form).await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("/")), "{}", reply.text());
    eventually("it continues", async || (state(&rig).await == "active").then_some(())).await;
    let events = format!("{TENURE_API}/events?exchange=subscription-suspended");
    assert_eq!(ok(rig.call("GET", &events, None).await)["events"].as_array().map(Vec::len), Some(1));
}
