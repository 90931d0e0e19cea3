//! What each row compares with what.

use super::contestant::Contestant;
use super::{RowName, Settings};

/// The server that all others are compared with.
const SUBJECT: &str = "tenure";

/// One table: columns that are measured in turn.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) title: String,
    pub(super) columns: Vec<Column<'a>>,
    /// Which column is divided by which.
    pub(super) ratios: Vec<(usize, usize)>,
}

/// A mode on a server.
#[derive(Debug)]
pub(super) struct Column<'a> {
    pub(super) name: String,
    pub(super) contestant: &'a Contestant,
    /// The mode and its flags.
    pub(super) arguments: Vec<String>,
}

/// The tables that belong to this name.
pub(super) fn rows<'a>(name: RowName, settings: &Settings, contestants: &'a [Contestant]) -> Vec<Row<'a>> {
    match name {
        RowName::Lifecycle => {
            let table = |connections: &usize| lifecycle(settings, contestants, *connections);
            settings.connections.iter().map(table).collect()
        }
    }
}

fn lifecycle<'a>(settings: &Settings, contestants: &'a [Contestant], connections: usize) -> Row<'a> {
    let columns: Vec<Column<'a>> = contestants
        .iter()
        .map(|contestant| Column {
            name: contestant.name.clone(),
            contestant,
            arguments: arguments(settings, "lifecycle", connections),
        })
        .collect();
    Row { title: format!("lifecycle, connections: {connections}"), ratios: subject_to_others(&columns), columns }
}

fn arguments(settings: &Settings, mode: &str, connections: usize) -> Vec<String> {
    let numbers =
        [("--connections", connections as u64), ("--seconds", settings.seconds), ("--warmup", settings.warmup)];
    let flags = numbers.into_iter().flat_map(|(flag, number)| [flag.to_owned(), number.to_string()]);
    [mode.to_owned()].into_iter().chain(flags).collect()
}

/// The subject divided by each of the others.
fn subject_to_others(columns: &[Column<'_>]) -> Vec<(usize, usize)> {
    let subject = columns.iter().position(|column| column.contestant.name == SUBJECT);
    let others = (0..columns.len()).filter(|column| Some(*column) != subject);
    subject.map_or_else(Vec::new, |subject| others.map(|other| (subject, other)).collect())
}
