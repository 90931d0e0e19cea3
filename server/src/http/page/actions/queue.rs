//! Actions on queues. The pause has a form of its own: [`crate::http::page::pause`].

use maud::{Markup, html};
use tenure_api::dead_letters::{RedriveCopy, RedriveRequest};
use tenure_api::ids::TaskQueueId;
use tenure_api::policy::{QueuePolicy, Rate};
use tenure_api::queue_keys::{KeyRules as KeyRulesOnWire, QueueKey};

use super::form::{Field, Form, REVIEWED, Review, ready};
use super::{Action, Failed, Order, Outcome, Subject, mismatch};
use crate::http::api::create_task;
use crate::http::api::queue_policy::store;
use crate::http::call::read_object;
use crate::http::page::error::PageError;
use crate::http::page::pause::reading_scope;
use crate::http::page::text;
use crate::http::scopes::Values;
use tenure_domain::create::NewTask;
use tenure_domain::dead_letter::{LIMIT_DEFAULT, Redrive};
use tenure_domain::policy::document::{Match, Policy};
use tenure_domain::policy::keys::{KeyRules, named};
use tenure_domain::policy::limit_words::words;
use tenure_engine::ops::queue_policy::Current;
use tenure_engine::ops::redrive::{self, redrive};
use tenure_engine::ops::{OpError, queue_keys, queue_policy, servers};
use tenure_store::policies::StoredPolicy;

/// The version that the form shows; empty if the queue had no policy.
const VERSION: &str = "version";

pub(super) const ACTIONS: &[Action] = &[
    Action::new(
        "policy",
        "putQueuePolicy",
        "Policy…",
        |order| Box::pin(policy_form(order)),
        |order| Box::pin(put_policy(order)),
    )
    .command(|subject| command(subject, "policy set", " FILE")),
    Action::new(
        "delete-policy",
        "deleteQueuePolicy",
        "Delete the policy…",
        |order| Box::pin(delete_policy_form(order)),
        |order| Box::pin(delete_policy(order)),
    )
    .offered(|subject| matches!(subject, Subject::Queue { has_policy: true, .. }))
    .command(|subject| command(subject, "policy delete", "")),
    Action::new(
        "key",
        "putQueueKey",
        "Limits of a key…",
        |order| Box::pin(key_form(order)),
        |order| Box::pin(put_key(order)),
    )
    .command(|subject| command(subject, "key set", " KEY --concurrency RUNS")),
    Action::new(
        "delete-key",
        "deleteQueueKey",
        "Delete the limits of a key…",
        |order| ready(Ok(delete_key_form(order))),
        |order| Box::pin(delete_key(order)),
    )
    .command(|subject| command(subject, "key delete", " KEY")),
    Action::new(
        "replace-scheduler",
        "replaceScheduler",
        "Replace the scheduler…",
        |_| ready(Ok(scheduler_form())),
        |order| Box::pin(replace_scheduler(order)),
    )
    .offered(|subject| matches!(subject, Subject::Queue { has_scheduler: true, .. }))
    .command(|subject| command(subject, "replace-scheduler", "")),
    Action::new(
        "redrive",
        "redriveQueue",
        "Run failed tasks again…",
        |_| ready(Ok(redrive_form())),
        |order| Box::pin(redrive_letters(order)),
    )
    .offered(|subject| matches!(subject, Subject::Queue { has_dead_letters: true, .. }))
    .command(|subject| command(subject, "redrive", "")),
];

fn of<'a>(order: &Order<'a>) -> Result<&'a TaskQueueId, PageError> {
    match order.subject {
        Subject::Queue { name, .. } => Ok(name),
        _ => Err(mismatch()),
    }
}

fn command(subject: &Subject, verb: &str, rest: &str) -> Option<String> {
    match subject {
        Subject::Queue { name, .. } => Some(format!("queue {verb} {name}{rest}")),
        _ => None,
    }
}

/// For visitors who may read it; none if the queue has no policy.
async fn find_policy(order: &Order<'_>) -> Result<Option<StoredPolicy>, PageError> {
    let queue = of(order)?;
    order.visit.authorize(reading_scope(queue))?;
    match queue_policy::get(order.app.engine.queue_parts(), queue).await {
        Ok(Current { stored, .. }) => Ok(Some(stored)),
        Err(OpError::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The limits as sentences.
fn in_words(policy: &Policy) -> Markup {
    let limits = words(policy);
    html! {
        @if limits.is_empty() { p { "Without limits: every run may start once its delay is over." } }
        @else { ul.why { @for sentence in &limits { li { (sentence) } } } }
    }
}

fn version_field(stored: Option<&StoredPolicy>) -> Field {
    Field::hidden(VERSION, stored.map_or_else(String::new, |stored| stored.version.to_string()))
}

async fn policy_form(order: &Order<'_>) -> Result<Form, PageError> {
    let stored = find_policy(order).await?;
    let about = html! {
        @match &stored {
            Some(stored) => { p.dim { "The form has version " (stored.version) ", by " code { (stored.client_id) } "." } }
            None => { p.dim { "The queue has no policy." } }
        }
        p.dim { "The whole policy, as JSON: omitted fields get their defaults." }
    };
    let text = stored.as_ref().map_or_else(|| "{}".to_owned(), |stored| text::pretty(&stored.policy));
    let fields = [version_field(stored.as_ref()), Field::text("policy", "Policy").value(text)];
    Ok(Form::new("Show what it means", about).with(fields))
}

/// Stores the policy once its words were shown.
async fn put_policy(order: &Order<'_>) -> Result<Outcome, Failed> {
    let queue = of(order)?;
    let sent: QueuePolicy =
        read_object(order.sent.text("policy").as_bytes()).map_err(|error| Failed::from(error).in_field("policy"))?;
    let policy = Policy::from_request(&sent).map_err(|error| Failed::from(error).in_field("policy"))?;
    if order.sent.text(REVIEWED) != policy.text() {
        let about = html! { p { "With this policy:" } (in_words(&policy)) };
        return Ok(Outcome::Review(Review { about, reviewed: policy.text().to_owned(), button: "Store the policy" }));
    }
    let replaces = replaced(order).await?;
    let stored = store(&order.app.engine, &order.actor, queue, sent, replaces).await?.stored;
    Ok(Outcome::Done(format!("The policy has version {}.", stored.version)))
}

/// Returns the policy that the form showed, as in `If-Match`.
async fn replaced(order: &Order<'_>) -> Result<Match, Failed> {
    if let Some(version) = order.sent.whole(VERSION)? {
        return Ok(Match::Version(version));
    }
    match find_policy(order).await? {
        None => Ok(Match::Anything),
        Some(stored) => Err(OpError::Conflict(format!(
            "the queue has got a policy since this form was shown, version {}: open the form again",
            stored.version
        ))
        .into()),
    }
}

async fn delete_policy_form(order: &Order<'_>) -> Result<Form, PageError> {
    let stored = find_policy(order).await?;
    let policy = stored.as_ref().and_then(|stored| Policy::from_stored(&stored.policy).ok());
    let about = html! {
        @match (&stored, &policy) {
            (Some(stored), Some(policy)) => {
                p.dim { "Deletes version " (stored.version) ", by " code { (stored.client_id) } ". Its limits:" }
                (in_words(policy))
            }
            _ => { p.dim { "The queue has no policy." } }
        }
    };
    Ok(Form::new("Delete the policy", about).with([version_field(stored.as_ref())]))
}

async fn delete_policy(order: &Order<'_>) -> Result<Outcome, Failed> {
    let queue = of(order)?;
    let wanted = replaced(order).await?;
    queue_policy::delete(order.app.engine.queue_parts(), &order.actor, queue, wanted).await?;
    Ok(Outcome::Done("The queue has no policy.".to_owned()))
}

/// The key in the form, or in the URL of its page.
fn key<'a>(order: &Order<'a>) -> &'a str {
    order.sent.non_empty("key").or_else(|| order.visit.query("key")).unwrap_or_default()
}

async fn find_key(order: &Order<'_>, key: &str) -> Result<Option<QueueKey>, PageError> {
    let queue = of(order)?;
    order.visit.authorize(reading_scope(queue))?;
    match queue_keys::get(order.app.engine.queue_parts(), queue, key).await {
        Ok(found) => Ok(Some(found)),
        Err(OpError::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn key_form(order: &Order<'_>) -> Result<Form, PageError> {
    let key = key(order);
    let found = if key.is_empty() { None } else { find_key(order, key).await? };
    let QueueKey { concurrency, rate, weight, .. } = found.unwrap_or(QueueKey {
        key: key.to_owned(),
        used: 0,
        limit: None,
        waiting: 0,
        concurrency: None,
        rate: None,
        weight: None,
    });
    let shown = |number: Option<i64>| number.map_or_else(String::new, |number| number.to_string());
    let about = html! { p.dim { "Replaces all rules of the key. They override the policy, which applies to empty fields. \
    Waiting runs follow at once; claimed runs continue." } };
    let fields = [
        Field::line("key", "Key").value(key),
        Field::line("concurrency", "Concurrency").hint("runs at a time").value(shown(concurrency)),
        Field::line("rate.count", "Rate: starts").value(shown(rate.map(|rate| rate.count))),
        Field::line("rate.seconds", "Rate: seconds").value(shown(rate.map(|rate| rate.seconds))),
        Field::line("rate.burst", "Rate: burst").hint("starts at once").value(shown(rate.and_then(|rate| rate.burst))),
        Field::line("weight", "Weight")
            .hint("1 by default")
            .value(weight.map_or_else(String::new, |of| of.to_string())),
    ];
    Ok(Form::new("Store the limits", about).with(fields))
}

async fn put_key(order: &Order<'_>) -> Result<Outcome, Failed> {
    let (queue, sent) = (of(order)?, order.sent);
    let key = named(sent.text("key"))?;
    let rate = match (sent.whole("rate.count")?, sent.whole("rate.seconds")?, sent.whole("rate.burst")?) {
        (None, None, None) => None,
        (Some(count), Some(seconds), burst) => Some(Rate { count, seconds, burst }),
        (None, ..) => return Err(Failed::input("`rate.count` must be set if the key has a rate")),
        (Some(_), None, _) => return Err(Failed::input("`rate.seconds` must be set if the key has a rate")),
    };
    let (concurrency, weight) = (sent.whole("concurrency")?, sent.parse("weight", "a number")?);
    let rules = KeyRules::from_request(&KeyRulesOnWire { concurrency, rate, weight })?;
    queue_keys::put(order.app.engine.queue_parts(), &order.actor, queue, &key, &rules).await?;
    Ok(Outcome::Done(format!("The limits of key {key:?} are stored.")))
}

fn delete_key_form(order: &Order<'_>) -> Form {
    let about = html! { p.dim { "The policy of the queue then applies to the key. Its runs stay." } };
    Form::new("Show the limits", about).with([Field::line("key", "Key").value(key(order))])
}

/// Deletes the limits once they were shown.
async fn delete_key(order: &Order<'_>) -> Result<Outcome, Failed> {
    let queue = of(order)?;
    let key = named(order.sent.text("key"))?;
    if order.sent.text(REVIEWED) == key {
        queue_keys::delete(order.app.engine.queue_parts(), &order.actor, queue, &key).await?;
        return Ok(Outcome::Done(format!("Key {key:?} has no limits of its own.")));
    }
    let Some(found) = find_key(order, &key).await? else {
        return Err(Failed::input("`key` has no limits of its own"));
    };
    let QueueKey { used, waiting, concurrency, rate, weight, .. } = found;
    let about = html! {
        p { "Key " code { (key) } " has " (used) " running and " (waiting) " waiting runs. These limits are deleted:" }
        ul.why {
            @if let Some(concurrency) = concurrency { li { "Concurrency: " (concurrency) } }
            @if let Some(Rate { count, seconds, .. }) = rate { li { "Rate: " (count) " in " (seconds) " s" } }
            @if let Some(weight) = weight { li { "Weight: " (weight.to_string()) } }
        }
    };
    Ok(Outcome::Review(Review { about, reviewed: key, button: "Delete the limits" }))
}

fn scheduler_form() -> Form {
    let about = html! { p.dim { "Ends the term of the scheduler as if its server were lost. With onSchedulerLoss reassign, \
    assigned runs are assigned again. The next scheduler is the live server with the \
    greatest weight, which may be the same one." } };
    Form::new("Replace the scheduler", about)
}

async fn replace_scheduler(order: &Order<'_>) -> Result<Outcome, Failed> {
    let replaced = servers::replace_scheduler(order.app.engine.server_parts(), &order.actor, of(order)?).await?;
    Ok(Outcome::Done(format!("The scheduler was replaced: term {}.", replaced.term)))
}

/// A field without a number leaves out copies.
const COPY: &str = "copy.deadlineAfter";

fn redrive_form() -> Form {
    let about = html! {
        p.dim { "Runs the oldest dead letters of the queue again: each gets a new run, as a rerun gives it. Tasks whose \
                 deadline has passed are refused, unless they are copied: a copy is a new task with the same definition, \
                 in a group of its own and without dependencies, and needs the scopes to create it. Refused tasks stay \
                 in the list." }
    };
    let fields = [
        Field::line("limit", "Number of tasks").value(LIMIT_DEFAULT.to_string()),
        Field::line(COPY, "Copy tasks past their deadline")
            .hint("seconds until the deadline of the copy; empty: no copies"),
    ];
    Form::new("Run them again", about).with(fields)
}

async fn redrive_letters(order: &Order<'_>) -> Result<Outcome, Failed> {
    let copy = order.sent.whole(COPY)?.map(|deadline_after| RedriveCopy { deadline_after });
    let sent = RedriveRequest { limit: order.sent.whole("limit")?, copy, ..RedriveRequest::default() };
    let request = Redrive::from_request(&sent, None)?;
    let may_create = |copy: &NewTask| {
        let required = create_task::SCOPES.fill(&create_task::values(copy), &Values::of_path());
        let required = required.map_err(|_| OpError::Unavailable)?;
        if order.visit.may(required.clone()) {
            return Ok(());
        }
        Err(OpError::Forbidden(format!("you lack the scopes to create the copy: {required}")))
    };
    let parts = order.app.engine.queue_parts();
    Ok(Outcome::Done(in_a_line(&redrive(parts, &order.actor, of(order)?, &request, &may_create).await?)))
}

fn in_a_line(outcome: &redrive::Outcome) -> String {
    let redrive::Outcome { redriven, copied, refused_count, refused, next } = outcome;
    let mut line = format!("Tasks run again: {redriven}. Copied: {copied}. Refused: {refused_count}.");
    if let Some((_, refusal)) = refused.first() {
        line.push_str(&format!(" The first refusal: {refusal}."));
    }
    if next.is_some() {
        line.push_str(" The list has more.");
    }
    line
}
