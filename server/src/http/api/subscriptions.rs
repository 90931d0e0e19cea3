//! Subscriptions, which send events to webhooks and brokers.

use std::time::Duration;

use tenure_api::errors::ErrorCode::ResourceExpired;
use tenure_api::subscriptions::{
    Amqp, Receiver, ResumeRequest, Subscription as SubscriptionOnWire, SubscriptionRequest, Subscriptions,
    TestDelivery, Webhook,
};

use crate::http::api::prelude::*;
use tenure_domain::delivery::message::WebhookSecret;
use tenure_domain::delivery::{ANSWER_MAX, Definition, Protocol, Subscription, named};
use tenure_engine::ops::subscriptions::{self as ops, SecretUsed};
use tenure_store::secrets::random;

const MANAGING: Template = Scope("tenure:manage-subscription:<subscriptionName>");
const LISTING: Template = Scope("tenure:list-subscriptions");
const WITH_RESULTS: Template = Scope("tenure:get-result:*");
/// Condition: ends of tasks are sent with their results.
const RESULT: &str = "resultIsAskedFor";
/// In place of a secret.
const HIDDEN: &str = "***";
const NO_SUBSCRIPTION: &str = "the subscription does not exist";
const BAD_NAME: &str = "the name has other characters than letters, digits, hyphens and underscores, or more than 64";
/// Around the answer of a receiver.
const AROUND_TEST: Duration = Duration::from_secs(5);

fn parts(app: &Api) -> ops::Parts<'_> {
    app.engine.subscription_parts()
}

fn name(call: &Call) -> Result<String, ApiError> {
    Ok(named(call.text_param("subscriptionName"))?)
}

fn shown(subscription: Subscription) -> SubscriptionOnWire {
    let (state, lag) = (subscription.state(), subscription.lag);
    let Subscription { name, definition, client_id, created, changed, position, suspended, .. } = subscription;
    SubscriptionOnWire {
        name,
        to: receiver(definition.url, definition.protocol),
        exchange: definition.exchanges.map(|list| list.split(',').map(|name| name.trim().to_owned()).collect()),
        routing_key_pattern: definition.routing_key_pattern,
        route: definition.route,
        result: definition.result,
        batch: definition.batch.into(),
        give_up_after: definition.give_up_after.num_seconds(),
        state,
        suspended_by: suspended.map(|suspended| suspended.by),
        suspended: suspended.map(|suspended| Timestamp::new(suspended.since)),
        position,
        lag_events: lag.events,
        lag_seconds: lag.age.as_seconds_f64(),
        last_success: subscription.last_success.map(Timestamp::new),
        failing_since: subscription.failing_since.map(Timestamp::new),
        next_try: subscription.next_try.map(Timestamp::new),
        last_error: subscription.error,
        client_id,
        created: Timestamp::new(created),
        last_modified: Timestamp::new(changed),
    }
}

fn receiver(url: String, protocol: Protocol) -> Receiver {
    match protocol {
        Protocol::Webhook => Receiver { webhook: Some(Webhook { url, secret: HIDDEN.to_owned() }), amqp: None },
        Protocol::Amqp { prefix } => Receiver { webhook: None, amqp: Some(Amqp { url, prefix }) },
    }
}

fn example_request() -> Value {
    json!({
        "to": {"webhook": {"url": "https://receiver.example/tenure"}},
        "exchange": ["task-completed", "task-failed", "task-exception"],
        "routingKeyPattern": "primary.*.*.*.*.acme.#",
        "batch": 100,
    })
}

fn example(sample: &Sample) -> Value {
    json!({
        "name": "billing",
        "to": {"webhook": {"url": "https://receiver.example/tenure", "secret": HIDDEN}},
        "exchange": ["task-completed", "task-failed", "task-exception"],
        "routingKeyPattern": "primary.*.*.*.*.acme.#",
        "result": false,
        "batch": 100,
        "giveUpAfter": 432_000,
        "state": "active",
        "position": 7,
        "lagEvents": 0,
        "lagSeconds": 0.0,
        "lastSuccess": sample.after(60),
        "clientId": "ci",
        "created": sample.after(0),
        "lastModified": sample.after(0),
    })
}

/// `PUT /subscriptions/:subscriptionName`
pub fn put_subscription() -> Endpoint {
    const SCOPES: Template =
        AllOf(&[MANAGING, Scope("tenure:list-events"), Template::If { condition: RESULT, then: &WITH_RESULTS }]);
    Endpoint::put("putSubscription", handle_put_subscription).scopes(SCOPES).secret_body().described(
        "tenure",
        "Store a subscription",
        describe_put_subscription,
    )
}

fn describe_put_subscription(operation: Operation, sample: &Sample) -> Operation {
    let mut stored = example(sample);
    stored["to"]["webhook"]["secret"] = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into();
    operation
        .about(
            "Creates or replaces it; the caller becomes its owner, who needs `tenure:list-events`, and for results \
             `tenure:get-result:*`, for each message. A replaced subscription keeps its position. Messages follow \
             Standard Webhooks: they are signed with the secret, which this answer shows only if it was generated. \
             With `amqp` in place of `webhook`, events are published to a broker, whose user and password are not \
             shown again. Events are sent in order, at least once, and a repeat has the same id.",
        )
        .takes::<SubscriptionRequest>(&example_request())
        .names(&[("subscriptionName", "$response.body#/name")])
        .answers::<SubscriptionOnWire>("The subscription", &stored)
        .refuses(
            InputError,
            "`to` has not exactly one receiver; the URL begins neither with https:// nor, for addresses in \
             `--deliver-to`, with http://, amqps:// or amqp://; it leads to an address that is neither public nor in \
             `--deliver-to`; the filter or a limit is invalid; `after` is not in the log or given for an existing \
             subscription; or the name is invalid",
        )
        .refuses(ResourceExpired, "events after `after` are no longer retained")
        .refuses(
            RequestConflict,
            "100 subscriptions exist, or a server of an older release is connected to the database",
        )
}

async fn handle_put_subscription(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.no_query()?;
    let name = name(&call)?;
    let sent: SubscriptionRequest = call.json()?;
    let mut definition = Definition::from_request(&sent)?;
    call.authorize(&Values::of_path().condition(RESULT, definition.result))?;
    check_owner(&call)?;
    let broker_url = app.deliveries.check_url(&mut definition)?;
    let given = sent.to.webhook.and_then(|webhook| webhook.secret);
    let given = given.as_deref().map(WebhookSecret::parse).transpose()?;
    let given = broker_url.as_deref().map(str::as_bytes).or(given.as_ref().map(WebhookSecret::as_bytes));
    let secret = match given {
        Some(given) => Some(app.deliveries.seal_given(&name, given).await?),
        None => None,
    };
    let default = WebhookSecret::from_random(random());
    let put = ops::Put {
        definition,
        secret,
        sealed_default: app.deliveries.seal(&name, default.as_bytes()),
        after: sent.after,
    };
    let used = ops::put(parts(&app), &call.actor()?, &name, put).await?;
    app.deliveries.notify_changed();
    let mut stored = shown(ops::get(parts(&app), &name).await?);
    if used == SecretUsed::Default
        && let Some(webhook) = &mut stored.to.webhook
    {
        webhook.secret = default.expose();
    }
    ok(&stored)
}

/// A subscription would outlive temporary credentials.
fn check_owner(call: &Call) -> Result<(), ApiError> {
    let principal = call.principal()?;
    match &principal.client_id {
        Some(_) if !principal.is_temporary => Ok(()),
        Some(_) | None => Err(ApiError::new(
            ErrorCode::InsufficientScopes,
            "a subscription needs a client as its owner; temporary credentials and anonymous callers cannot store one",
        )),
    }
}

/// `GET /subscriptions/:subscriptionName`
pub fn get_subscription() -> Endpoint {
    Endpoint::get("subscription", handle_get_subscription).scopes(AnyOf(&[LISTING, MANAGING])).described(
        "tenure",
        "Read a subscription",
        describe_get_subscription,
    )
}

fn describe_get_subscription(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("With its state, how far it is behind the log, and why the last attempt failed.")
        .answers::<SubscriptionOnWire>("The subscription", &example(sample))
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_SUBSCRIPTION)
}

async fn handle_get_subscription(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ok(&shown(ops::get(parts(&app), &name(&call)?).await?))
}

/// `GET /subscriptions`
pub fn list_subscriptions() -> Endpoint {
    Endpoint::get("listSubscriptions", handle_list_subscriptions).scopes(LISTING).described(
        "tenure",
        "List subscriptions",
        describe_list_subscriptions,
    )
}

fn describe_list_subscriptions(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about("All subscriptions, by name; at most 100 can exist.")
        .answers::<Subscriptions>("The subscriptions", &json!({"subscriptions": [example(sample)]}))
}

async fn handle_list_subscriptions(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let subscriptions = ops::list(parts(&app)).await?.into_iter().map(shown).collect();
    ok(&Subscriptions { subscriptions })
}

/// `DELETE /subscriptions/:subscriptionName`
pub fn delete_subscription() -> Endpoint {
    Endpoint::delete("deleteSubscription", handle_delete_subscription).scopes(MANAGING).described(
        "tenure",
        "Delete a subscription",
        describe_delete_subscription,
    )
}

fn describe_delete_subscription(operation: Operation, _: &Sample) -> Operation {
    operation
        .about("Its receiver gets no more events, except a message that is being sent.")
        .answers_with(
            200,
            "The subscription does not exist any more",
            "application/json",
            &json!({"type": "object", "maxProperties": 0}),
            &json!({}),
        )
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_SUBSCRIPTION)
}

async fn handle_delete_subscription(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    ops::delete(parts(&app), &call.actor()?, &name(&call)?).await?;
    app.deliveries.notify_changed();
    Ok(raw("{}"))
}

/// `POST /subscriptions/:subscriptionName/test`
pub fn test_subscription() -> Endpoint {
    Endpoint::post("testSubscription", handle_test_subscription)
        .scopes(MANAGING)
        .answers_within(|_| ANSWER_MAX + AROUND_TEST)
        .described("tenure", "Send a test message", describe_test_subscription)
}

fn describe_test_subscription(operation: Operation, _: &Sample) -> Operation {
    operation
        .about(
            "Sends one signed message of type `test` and waits for its answer, up to 15 seconds. To a broker it is \
             published without a queue, which needs no right to declare an exchange. Also while the subscription is \
             suspended. Its position stays.",
        )
        .answers::<TestDelivery>(
            "What the receiver answered",
            &json!({"delivered": true, "status": 200, "body": "ok", "milliseconds": 38}),
        )
        .refuses(InputError, BAD_NAME)
        .refuses(ResourceNotFound, NO_SUBSCRIPTION)
        .refuses(RequestConflict, "the secret of the subscription cannot be decrypted: store it with a new one")
}

async fn handle_test_subscription(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let result: TestDelivery = app.deliveries.test(&name(&call)?).await?;
    ok(&result)
}

/// `POST /subscriptions/:subscriptionName/resume`
pub fn resume_subscription() -> Endpoint {
    Endpoint::post("resumeSubscription", handle_resume_subscription).scopes(MANAGING).described(
        "tenure",
        "Resume a subscription",
        describe_resume_subscription,
    )
}

fn describe_resume_subscription(operation: Operation, sample: &Sample) -> Operation {
    operation
        .about(
            "It continues where it stopped, or after the given position. Also for a subscription that is not \
             suspended: its message is sent again at once, and the age of its events counts from now.",
        )
        .may_take_json::<ResumeRequest>(&json!({"after": "latest"}))
        .checks_body()
        .answers::<SubscriptionOnWire>("The subscription", &example(sample))
        .refuses(InputError, "`after` does not exist yet, or the name of the subscription is invalid")
        .refuses(ResourceNotFound, NO_SUBSCRIPTION)
        .refuses(ResourceExpired, "the next events are no longer retained; give `after`")
}

async fn handle_resume_subscription(app: Api, call: Arc<Call>) -> Result<Response, ApiError> {
    call.authorize_by_path()?;
    call.no_query()?;
    let ResumeRequest { after } = call.json_or_default()?;
    let resumed = ops::resume(parts(&app), &call.actor()?, &name(&call)?, after).await?;
    app.deliveries.notify_changed();
    ok(&shown(resumed))
}
