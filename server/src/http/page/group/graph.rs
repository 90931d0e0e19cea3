//! The dependencies of a group's tasks as SVG. Colours and marks show states.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

use maud::{Markup, html};
use tenure_api::states::TaskState;
use tenure_domain::group_progress::Progress;

use super::layers::{Spot, place};
use super::prefixes::prefixes;
use crate::http::page::text;

/// Nodes of a graph of prefixes.
const PREFIXES_MAX: usize = 40;
/// Further edges are not drawn.
const EDGES_MAX: usize = 300;
const LABEL_CHARS: usize = 20;
const TITLE_CHARS: usize = 60;
/// In pixels, as in style.css.
const NODE_WIDTH: usize = 150;
const NODE_HEIGHT: usize = 22;
const COLUMN_WIDTH: usize = 200;
const ROW_HEIGHT: usize = 30;
const MARGIN: usize = 8;

/// A task, or the tasks with a prefix.
struct Node {
    label: String,
    /// Shown under the pointer; empty if the label says it.
    title: String,
    state: TaskState,
    link: String,
}

pub(super) struct Graph {
    nodes: Vec<Node>,
    /// Required and dependent node.
    edges: Vec<(usize, usize)>,
}

/// A task of the group.
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) state: TaskState,
}

impl Graph {
    /// One node for each task.
    pub(super) fn of_tasks(tasks: &[Named<'_>], edges: Vec<(usize, usize)>, link: impl Fn(usize) -> String) -> Self {
        let node = |(index, task): (usize, &Named<'_>)| {
            let (label, is_cut) = cut(task.name, LABEL_CHARS);
            let title = if is_cut { cut(task.name, TITLE_CHARS).0 } else { String::new() };
            Node { label, title, state: task.state, link: link(index) }
        };
        Self { nodes: tasks.iter().enumerate().map(node).collect(), edges }
    }

    /// One node for each prefix of names.
    pub(super) fn of_prefixes(tasks: &[Named<'_>], edges: &[(usize, usize)], link: impl Fn(&str) -> String) -> Self {
        let names: Vec<&str> = tasks.iter().map(|task| task.name).collect();
        let of = prefixes(&names, PREFIXES_MAX);
        let mut numbers = HashMap::new();
        let mut members: Vec<(&str, Vec<TaskState>)> = Vec::new();
        let mut node_of = Vec::with_capacity(tasks.len());
        for (task, &prefix) in tasks.iter().zip(&of) {
            let number = *numbers.entry(prefix).or_insert_with(|| {
                members.push((prefix, Vec::new()));
                members.len() - 1
            });
            members[number].1.push(task.state);
            node_of.push(number);
        }
        let node = |&(prefix, ref states): &(&str, Vec<TaskState>)| {
            let progress = Progress::of(states.iter().copied());
            let count = text::count(i64::try_from(states.len()).unwrap_or(i64::MAX));
            let name = if prefix.is_empty() { "all others" } else { prefix };
            Node {
                label: format!("{} ×{count}", cut(name, LABEL_CHARS - 6).0),
                title: format!("{}: {}", cut(name, TITLE_CHARS).0, by_state(progress)),
                state: most_urgent(progress),
                link: link(prefix),
            }
        };
        let between = edges.iter().filter_map(|&(from, to)| Some((*node_of.get(from)?, *node_of.get(to)?)));
        let mut seen = HashSet::new();
        let edges = between.filter(|&(from, to)| from != to && seen.insert((from, to))).collect();
        Self { nodes: members.iter().map(node).collect(), edges }
    }

    pub(super) fn has_edges(&self) -> bool {
        !self.edges.is_empty()
    }

    pub(super) fn omitted_edges(&self) -> usize {
        self.edges.len().saturating_sub(EDGES_MAX)
    }

    pub(super) fn svg(&self) -> Markup {
        let spots = place(self.nodes.len(), &self.edges);
        let size = |last: Option<usize>, step: usize, own: usize| last.unwrap_or(0) * step + own + 2 * MARGIN;
        let width = size(spots.iter().map(|spot| spot.column).max(), COLUMN_WIDTH, NODE_WIDTH);
        let height = size(spots.iter().map(|spot| spot.row).max(), ROW_HEIGHT, NODE_HEIGHT);
        html! {
            div.graph tabindex="0" {
                svg width=(width) height=(height) role="group" aria-label="Dependencies" {
                    path d=(lines(&spots, &self.edges)) {}
                    @for (node, &spot) in self.nodes.iter().zip(&spots) {
                        @let (x, y) = corner(spot);
                        // The style has the size of the rectangle and the position of the text.
                        a class=(node.state) href=(node.link) transform={ "translate(" (x) "," (y) ")" } {
                            @if !node.title.is_empty() { title { (node.title) } }
                            rect {} text { (mark(node.state)) " " (node.label) }
                        }
                    }
                }
            }
        }
    }
}

fn corner(Spot { column, row }: Spot) -> (usize, usize) {
    (MARGIN + column * COLUMN_WIDTH, MARGIN + row * ROW_HEIGHT)
}

/// All edges as one path, from the right side of required nodes to the left side of dependents.
fn lines(spots: &[Spot], edges: &[(usize, usize)]) -> String {
    let mut path = String::new();
    for &(from, to) in edges.iter().take(EDGES_MAX) {
        let ((x, y), (end, end_y)) = (corner(spots[from]), corner(spots[to]));
        let (x, y) = (x + NODE_WIDTH, y + NODE_HEIGHT / 2);
        let (dx, dy) = (end.cast_signed() - x.cast_signed(), (end_y + NODE_HEIGHT / 2).cast_signed() - y.cast_signed());
        // Horizontal at both ends.
        let bend = (COLUMN_WIDTH - NODE_WIDTH).cast_signed();
        // Writing to a string cannot fail.
        let _ = write!(path, "M{x} {y}c{bend} 0 {} {dy} {dx} {dy}", dx - bend);
    }
    path
}

/// Colour alone would not show the state to everybody.
fn mark(state: TaskState) -> char {
    match state {
        TaskState::Unscheduled => '○',
        TaskState::Pending => '…',
        TaskState::Running => '▸',
        TaskState::Completed => '✓',
        TaskState::Failed => '✗',
        TaskState::Exception => '!',
    }
}

/// The state that decides the colour of several tasks.
fn most_urgent(progress: Progress) -> TaskState {
    let order = [
        TaskState::Failed,
        TaskState::Exception,
        TaskState::Running,
        TaskState::Pending,
        TaskState::Unscheduled,
        TaskState::Completed,
    ];
    order.into_iter().find(|&state| progress.get(state) > 0).unwrap_or(TaskState::Completed)
}

fn by_state(progress: Progress) -> String {
    let counts: BTreeMap<TaskState, usize> = TaskState::ALL.iter().map(|&state| (state, progress.get(state))).collect();
    let words = counts.iter().filter(|(_, count)| **count > 0).map(|(state, count)| format!("{count} {state}"));
    words.collect::<Vec<_>>().join(", ")
}

/// True if characters were cut.
fn cut(name: &str, chars_max: usize) -> (String, bool) {
    match name.char_indices().nth(chars_max) {
        Some((end, _)) => (format!("{}…", &name[..end]), true),
        None => (name.to_owned(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<'a>(names: &[&'a str]) -> Vec<Named<'a>> {
        names.iter().map(|&name| Named { name, state: TaskState::Completed }).collect()
    }

    #[test]
    fn node_links_to_its_task() {
        let tasks = named(&["<script>alert(1)", "test"]);
        let graph = Graph::of_tasks(&tasks, vec![(0, 1)], |index| format!("/task/{index}"));
        let svg = graph.svg().into_string();
        assert!(svg.contains("<a class=\"completed\" href=\"/task/1\" transform=\"translate(208,8)\">"), "{svg}");
        assert!(svg.contains("&lt;script&gt;alert(1)") && !svg.contains("<script"), "{svg}");
        assert!(svg.contains("d=\"M158 19c50 0 0 0 50 0\""), "{svg}");
    }

    #[test]
    fn prefixes_share_a_node() {
        let mut tasks = named(&["test-1", "test-2", "build"]);
        tasks[1].state = TaskState::Failed;
        let graph = Graph::of_prefixes(&tasks, &[(2, 0), (2, 1), (0, 1)], str::to_owned);
        let titles: Vec<&str> = graph.nodes.iter().map(|node| node.title.as_str()).collect();
        assert_eq!(titles, ["test-: 1 completed, 1 failed", "build: 1 completed"]);
        assert_eq!(graph.nodes[0].state, TaskState::Failed);
        assert_eq!(graph.edges, [(1, 0)]);
    }

    #[test]
    fn drawing_of_200_tasks_is_small() {
        let names: Vec<String> = (0..200).map(|n| format!("test-integration-{n}")).collect();
        let tasks: Vec<Named<'_>> = names.iter().map(|name| Named { name, state: TaskState::Pending }).collect();
        let edges = (1..200).flat_map(|to| [(0, to), (to / 2, to)]).collect();
        let link = |_| "/task/AAAAAAAAAAAAAAAAAAAAAA".to_owned();
        let svg = Graph::of_tasks(&tasks, edges, link).svg().into_string();
        assert!(svg.len() < 42 << 10, "{} bytes", svg.len());
    }
}
