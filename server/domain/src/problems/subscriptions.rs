//! Problems of subscriptions.

use chrono::{DateTime, Utc};
use tenure_api::problems::{Problem, ProblemKind, ProblemObject};
use tenure_api::states::SuspendedBy;

use super::facts::SubscriptionFacts;
use super::problem;
use crate::verdict::span;

pub(super) fn find(facts: &SubscriptionFacts, now: DateTime<Utc>) -> Option<Problem> {
    let SubscriptionFacts { name, suspended, age, limit, error } = facts;
    let object = ProblemObject { subscription: Some(name.clone()), ..ProblemObject::default() };
    let last_error = error.as_ref().map_or_else(String::new, |error| format!(" The last error: {error}."));
    let Some((since, by)) = suspended else {
        // Half the limit leaves time to repair the receiver.
        if *age <= *limit / 2 {
            return None;
        }
        let (old, end) = (span(*age), span(*limit));
        let message = format!(
            "Subscription {name}: its oldest undelivered event is {old} old; at {end} it is suspended.{last_error}"
        );
        let action = format!("See why its receiver does not accept events: tenure subscription show {name}");
        return Some(problem(ProblemKind::Subscription, object, now - *age, message, action));
    };
    let resume = format!("tenure subscription resume {name}");
    let (why, action) = match by {
        SuspendedBy::Age => ("an event was not accepted in time", format!("Repair its receiver, then: {resume}")),
        SuspendedBy::Gone => {
            ("its receiver wants no more events", format!("Delete the subscription, or resume it: {resume}"))
        }
        SuspendedBy::EventsLost => {
            ("its next events are no longer retained", format!("Skip them: {resume} --after latest"))
        }
    };
    let time = span(now - *since);
    let message = format!(
        "Subscription {name} has been suspended for {time}, because {why}: its receiver gets no events.{last_error}"
    );
    Some(problem(ProblemKind::Subscription, object, *since, message, action))
}
