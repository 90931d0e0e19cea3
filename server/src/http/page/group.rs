//! `/group/<taskGroupId>`: if a group is done, and what keeps it from that.

mod graph;
mod layers;
mod members;
mod prefixes;
mod sections;
mod tables;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use percent_encoding::utf8_percent_encode;
use tenure_api::ids::{TaskGroupId, TaskId};
use tenure_api::states::TaskState;
use uuid::Uuid;

use self::graph::{Graph, Named};
use self::members::{Drawing, GRAPH_TASKS, Members, names};
use self::sections::{Section, allot};
use super::actions::{self, On, Subject};
use super::audit;
use super::bar::{Part, bar};
use super::error::PageError;
use super::layout::{self, Page, section};
use super::overview::REFRESH;
use super::problems;
use super::state::Site;
use super::text;
use super::visit::{SEGMENT, Visit};
use tenure_domain::audit::Kind;
use tenure_domain::group_progress::Progress;
use tenure_domain::task::Group;
use tenure_store::clock;
use tenure_store::page::{self, GroupRow};

/// Rows of all sections together, beside no graph, a graph, and a graph of over [`LARGE_GRAPH`]
/// nodes: a page has up to 60 kB.
const ROWS: [usize; 3] = [50, 25, 12];
const LARGE_GRAPH: usize = 100;
/// Rows that each section gets if others have more.
const ROWS_OF_EACH: usize = 5;
/// Rows of a page about one section.
const ROWS_OF_ONE: usize = 50;

/// Parameters of the page.
struct Wanted {
    /// Tasks are read after this id.
    from: Uuid,
    /// The only section.
    show: Option<Section>,
    /// The section begins after this task.
    after: Option<TaskId>,
}

impl Wanted {
    fn of(visit: &Visit) -> Self {
        let task = |name: &str| visit.query(name).and_then(|id| id.parse::<TaskId>().ok());
        Self {
            from: task("from").map_or(Uuid::nil(), TaskId::uuid),
            show: visit.query("show").and_then(Section::parse),
            after: task("after"),
        }
    }

    fn is_first_page(&self) -> bool {
        self.from.is_nil() && self.show.is_none()
    }
}

/// `GET /group/:taskGroupId`
pub(super) async fn group(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let id: TaskGroupId = visit
        .param("taskGroupId")
        .parse()
        .map_err(|_| PageError::NotFound("This is not the id of a task group.".to_owned()))?;
    visit.authorize(format!("queue:list-task-group:{id}"))?;
    let wanted = Wanted::of(&visit);
    let mut conn = page::begin(&app.engine.pool).await?;
    let now = clock::get_now(&mut conn).await?;
    let found = page::find_group(&mut conn, id.uuid()).await?;
    let group = found.ok_or_else(|| PageError::NotFound(format!("There is no task group {id}.")))?;
    let mut members = Members::read(&mut conn, id.uuid(), wanted.from).await?;
    let drawing = match &members {
        Some(members) if wanted.is_first_page() => Drawing::read(&mut conn, members).await?,
        Some(_) | None => None,
    };
    let rows_max = match &drawing {
        None => ROWS[0],
        Some(drawing) if drawing.tasks <= LARGE_GRAPH => ROWS[1],
        Some(_) => ROWS[2],
    };
    if let Some(members) = &mut members {
        let shown = shown(members, &wanted, rows_max);
        members.read_rows(&mut conn, &shown).await?;
    }
    let changes = audit::latest(&mut conn, &visit, Kind::TaskGroup, &[id.to_string()]).await?;
    conn.commit().await?;
    let graph = match (&members, drawing) {
        (Some(members), Some(drawing)) => Some(draw(&app, &visit, id, members, drawing).await),
        _ => None,
    };
    let name = members.as_ref().and_then(Members::first_name);
    let subject =
        Subject::Group(Group { id, scheduler: group.scheduler.clone(), expires: group.expires, sealed: group.sealed });
    let body = html! {
        h1 { span.kind { "Task group" } @match &name { Some(name) => (name), None => { code { (id) } } } }
        @if let Some(members) = &members { (outcome(&visit, id, members)) }
        (problems::about(&app, &visit, |object| object.group == Some(id)))
        (audit::shown(&changes, now))
        (actions::bar(&visit, On::Group, &subject))
        (facts(&visit, id, &group, members.as_ref(), now))
        @match &members {
            None => (section("Tasks", &html! {}, &layout::unread())),
            Some(members) if members.all.is_empty() => {
                (section("Tasks", &html! {}, &layout::empty(&html! { p { "No task here. Tasks join a group by naming it as taskGroupId when they are created." } })))
            }
            Some(members) => {
                @if let Some(graph) = &graph { (graph_section(graph, members)) }
                (tables::all(&visit, id, members, now, |section| link(&visit, id, &wanted, section)))
            }
        }
    };
    let title = format!("Task group {}", name.unwrap_or_else(|| id.to_string()));
    // Later pages are read undisturbed.
    Ok(Page::new(title, wanted.is_first_page().then_some(REFRESH), body))
}

/// Tasks to show of each section.
fn shown(members: &Members, wanted: &Wanted, rows_max: usize) -> Vec<(Section, Vec<i64>)> {
    if let Some(section) = wanted.show {
        let after = wanted.after.and_then(|task| members.find(task)).unwrap_or(i64::MIN);
        let later = members.tasks_of(section).iter().map(|task| task.seq).filter(|seq| *seq > after);
        return vec![(section, later.take(ROWS_OF_ONE).collect())];
    }
    let sizes: Vec<usize> = members.sections.iter().map(|(_, tasks)| tasks.len()).collect();
    let rows = allot(&sizes, rows_max, ROWS_OF_EACH);
    let sections = members.sections.iter().zip(rows);
    sections
        .map(|((section, tasks), rows)| (*section, tasks.iter().take(rows).map(|task| task.seq).collect()))
        .collect()
}

/// Links to a section, after `after` if it is given.
fn link(visit: &Visit, id: TaskGroupId, wanted: &Wanted, (section, after): (Section, Option<TaskId>)) -> String {
    let mut link = format!("{}?show={}", visit.link_to("group", &[&id.to_string()]), section.word());
    if let Some(from) = TaskId::from_uuid(wanted.from).filter(|_| !wanted.from.is_nil()) {
        link.push_str(&format!("&from={from}"));
    }
    if let Some(after) = after {
        link.push_str(&format!("&after={after}"));
    }
    link
}

/// The verdict, and the states as a bar.
fn outcome(visit: &Visit, id: TaskGroupId, members: &Members) -> Markup {
    let progress = members.progress;
    let own = visit.link_to("group", &[&id.to_string()]);
    html! {
        p.verdict { (progress.verdict(members.blocked.len())) }
        @if let Some(next) = members.next {
            p.warning {
                "The group has 20\u{202f}000 tasks and more. This page is about 20\u{202f}000 of them, in the order of \
                 their ids: " a href={ (own) "?from=" (next) } { "the next" } "."
            }
        }
        @if members.is_later { p.dim { a href=(own) { "From the first task" } } }
        (states(progress))
    }
}

fn states(progress: Progress) -> Markup {
    let order = [
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Exception,
        TaskState::Running,
        TaskState::Pending,
        TaskState::Unscheduled,
    ];
    let parts = order.map(|state| {
        let count = progress.get(state);
        Part { class: state.as_str(), amount: count as u64, words: format!("{count} {state}") }
    });
    html! {
        (bar(&parts))
        ul.legend {
            @for part in parts.iter().filter(|part| part.amount > 0) { li { span class={ "key " (part.class) } {} (part.words) } }
        }
    }
}

fn facts(visit: &Visit, id: TaskGroupId, group: &GroupRow, members: Option<&Members>, now: DateTime<Utc>) -> Markup {
    let first = members.and_then(Members::first);
    html! { dl.facts {
        div { dt { "Group" } dd { code { (id) } } }
        @if let Some(first) = first {
            div { dt { "First task" } dd { (layout::task(visit, &first.task.to_string(), first.definition.as_deref())) } }
        }
        @if let Some((words, span)) = members.and_then(|members| members.duration(now)) {
            div { dt { (words) } dd { (text::span(span)) } }
        }
        div { dt { "Scheduler" } dd { (group.scheduler) } }
        div { dt { "Sealed" } dd { @match group.sealed { Some(time) => (layout::time(time, now)), None => { "no, tasks may be added" } } } }
        div { dt { "Expires" } dd { (layout::time(group.expires, now)) } }
    } }
}

/// Reads the names, as heavy work, and makes the graph.
async fn draw(app: &Site, visit: &Visit, id: TaskGroupId, members: &Members, drawing: Drawing) -> Graph {
    let Drawing { tasks, edges, definitions } = drawing;
    let bytes: usize = definitions.iter().map(|(_, definition)| definition.len()).sum();
    let names = app.intake.heavy.run_for(visit.share(), bytes, move || names(&definitions)).await;
    let considered = &members.all[..tasks.min(members.all.len())];
    let ids: Vec<String> = considered
        .iter()
        .map(|member| TaskId::from_uuid(member.id).map(|id| id.to_string()).unwrap_or_default())
        .collect();
    let is_by_prefix = members.all.len() > GRAPH_TASKS;
    let named = considered.iter().zip(&ids).map(|(member, id)| {
        let unnamed = if is_by_prefix { "" } else { text::short(id) };
        Named { name: names.get(&member.seq).map_or(unnamed, String::as_str), state: member.state }
    });
    let named: Vec<Named<'_>> = named.collect();
    if is_by_prefix {
        Graph::of_prefixes(&named, &edges, |prefix| {
            format!("{}?group={id}&name={}", visit.link("/tasks"), utf8_percent_encode(prefix, SEGMENT))
        })
    } else {
        Graph::of_tasks(&named, edges, |index| visit.link_to("task", &[&ids[index]]))
    }
}

fn graph_section(graph: &Graph, members: &Members) -> Markup {
    if !graph.has_edges() {
        return Markup::default();
    }
    let note = html! {
        "from required to dependent tasks"
        @if members.all.len() > GRAPH_TASKS { ", by the beginning of their names" }
        @if members.all.len() > members::NAMED_TASKS { "; the first " (members::NAMED_TASKS) " tasks" }
        @if graph.omitted_edges() > 0 { "; without " (graph.omitted_edges()) " dependencies" }
    };
    section("Graph", &note, &graph.svg())
}
