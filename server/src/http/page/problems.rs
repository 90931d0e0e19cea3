//! What needs somebody, on the overview and on the pages of queues, groups and workers.

use maud::{Markup, html};
use percent_encoding::utf8_percent_encode;
use tenure_api::problems::{Problem, ProblemKind, ProblemObject, ProblemSeverity};

use super::layout::{self, section};
use super::overview::listing_scope;
use super::pause::{reading_scope, resume_button};
use super::state::Site;
use super::visit::{SEGMENT, Visit};
use tenure_domain::problems::{each_kind_first, reduce};

const TITLE: &str = "What needs somebody";
const ROWS_MAX: usize = 25;
const OF_INSTALLATION: [ProblemKind; 5] =
    [ProblemKind::Database, ProblemKind::Server, ProblemKind::Scheduler, ProblemKind::Pass, ProblemKind::Refile];
const OF_SERVERS: &str = "tenure:list-servers";
const OF_SUBSCRIPTIONS: &str = "tenure:list-subscriptions";
/// The overview shows at least one problem of each kind.
const OVERVIEW_MAX: usize = ProblemKind::ALL.len();

/// All problems that the visitor may see, at the top of the overview.
pub(super) fn all(app: &Site, visit: &Visit) -> Markup {
    let Some(found) = app.engine.problems.get() else {
        let note = html! { p { "The facts about queues and servers have not been read lately. The next page may have them." } };
        return section(TITLE, &html! {}, &layout::empty(&note));
    };
    let mut shown = Vec::new();
    for problem in &found.problems {
        match &problem.object.queue {
            Some(queue) if visit.may(listing_scope(queue.as_str())) => shown.push(for_visitor(visit, problem)),
            None if visit.may(without_queue(&problem.object)) => shown.push(problem.clone()),
            Some(_) | None => {}
        }
    }
    let urgent = shown.iter().filter(|problem| problem.severity == ProblemSeverity::Now).count();
    let note = html! {
        @if !shown.is_empty() { (urgent) " now, " (shown.len() - urgent) " known" }
        @if !visit.may(OF_SERVERS) { " without servers and database, which need " code { (OF_SERVERS) } }
    };
    if shown.is_empty() {
        let nothing = html! { p { "Nothing: no queue, server, pass or subscription has a problem." } };
        return section(TITLE, &note, &layout::empty(&nothing));
    }
    let shown = each_kind_first(shown);
    let body = html! {
        (list(visit, &shown[..shown.len().min(OVERVIEW_MAX)], |problem| help(visit, problem)))
        @if shown.len() > OVERVIEW_MAX {
            div.note { p { (shown.len() - OVERVIEW_MAX) " more: " code { "tenure problems" } " lists all of them." } }
        }
    };
    section(TITLE, &note, &body)
}

/// Scope to see a problem that is not about a queue.
fn without_queue(object: &ProblemObject) -> &'static str {
    if object.subscription.is_some() { OF_SUBSCRIPTIONS } else { OF_SERVERS }
}

/// Problems of one object, at the top of its page; empty without any.
pub(super) fn about(app: &Site, visit: &Visit, is_about: impl Fn(&ProblemObject) -> bool) -> Markup {
    let Some(found) = app.engine.problems.get() else { return html! {} };
    let may_list = |problem: &&Problem| {
        let queue = problem.object.queue.as_ref();
        queue.is_none_or(|queue| visit.may(listing_scope(queue.as_str())) || visit.may(reading_scope(queue)))
    };
    let own = found.problems.iter().filter(|problem| is_about(&problem.object)).filter(may_list);
    let shown: Vec<Problem> = own.take(ROWS_MAX).map(|problem| for_visitor(visit, problem)).collect();
    if shown.is_empty() {
        return html! {};
    }
    // The page has the buttons of its object.
    section(TITLE, &html! {}, &list(visit, &shown, |_| html! {}))
}

/// Problems of servers, passes and the database. None if the facts were not read lately.
pub(super) fn of_installation(app: &Site, visit: &Visit) -> Option<Vec<Problem>> {
    let found = app.engine.problems.get()?;
    let may_list =
        |problem: &&Problem| problem.object.queue.as_ref().is_none_or(|queue| visit.may(listing_scope(queue.as_str())));
    let own = found.problems.iter().filter(|problem| OF_INSTALLATION.contains(&problem.kind)).filter(may_list);
    Some(own.map(|problem| for_visitor(visit, problem)).collect())
}

/// Empty without any.
pub(super) fn listed(visit: &Visit, problems: &[Problem]) -> Markup {
    if problems.is_empty() {
        return html! {};
    }
    let shown = &problems[..problems.len().min(ROWS_MAX)];
    section(
        TITLE,
        &html! { @if shown.len() < problems.len() { (shown.len()) " of " (problems.len()) } },
        &list(visit, shown, |problem| help(visit, problem)),
    )
}

/// Numbers and names of a queue need the scope that shows it.
fn for_visitor(visit: &Visit, problem: &Problem) -> Problem {
    let hidden = problem.object.queue.as_ref().is_some_and(|queue| !visit.may(reading_scope(queue)));
    if hidden { reduce(problem) } else { problem.clone() }
}

fn list(visit: &Visit, problems: &[Problem], beside: impl Fn(&Problem) -> Markup) -> Markup {
    html! {
        ul.problems { @for problem in problems { li {
            (layout::state(problem.severity.as_str())) " " (problem.message)
            @if let Some(action) = &problem.action { p { (action) } }
            (links(visit, &problem.object))
            (beside(problem))
        } } }
    }
}

/// The button or link that helps with a problem of a queue.
fn help(visit: &Visit, problem: &Problem) -> Markup {
    let Some(queue) = &problem.object.queue else { return html! {} };
    let name = utf8_percent_encode(queue.as_str(), SEGMENT);
    let (path, words) = match problem.kind {
        ProblemKind::Paused => return html! { div.help { (resume_button(visit, queue)) } },
        ProblemKind::NoWorker | ProblemKind::LosesWorkers => (format!("/workers?queue={name}"), "Its workers"),
        ProblemKind::Quarantined => (format!("/workers?queue={name}&state=quarantined"), "Quarantined workers"),
        ProblemKind::Fails => (format!("/tasks?queue={name}&state=failed"), "Failed tasks"),
        ProblemKind::Deadlines => (
            format!("/tasks?queue={name}&state=exception&reason=deadline-exceeded"),
            "Tasks that missed their deadlines",
        ),
        ProblemKind::WaitsLong => (format!("/tasks?queue={name}&state=pending"), "Pending tasks"),
        ProblemKind::HeldLong => (format!("/tasks?queue={name}&state=held"), "Held tasks"),
        ProblemKind::Never
        | ProblemKind::Scheduler
        | ProblemKind::Refile
        | ProblemKind::Database
        | ProblemKind::Server
        | ProblemKind::Pass
        | ProblemKind::Subscription => return html! {},
    };
    html! { div.help { a.button href=(visit.link(&path)) { (words) } } }
}

fn links(visit: &Visit, object: &ProblemObject) -> Markup {
    let worker = object.worker.as_deref().and_then(|worker| worker.split_once('/'));
    html! {
        @if object.queue.is_some() || worker.is_some() || object.group.is_some() {
            p.dim {
                @if let Some(queue) = &object.queue { "queue " (layout::queue(visit, queue.as_str())) " " }
                @if let Some((group, id)) = worker { "worker " (layout::worker(visit, group, id)) " " }
                @if let Some(group) = object.group {
                    "group " a href=(visit.link_to("group", &[&group.to_string()])) { code { (group) } }
                }
            }
        }
    }
}
