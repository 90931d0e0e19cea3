//! Figures of all rounds, their medians and ratios, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Commits;
use crate::Measured;

/// Sessions with less than this share of PostgreSQL's time are not listed.
const LISTED: f64 = 0.01;
const MICROS: f64 = 1e6;

#[derive(Debug)]
pub(super) struct Round {
    figures: Vec<(String, f64)>,
    /// Microseconds per task, by activity of PostgreSQL's sessions.
    sessions: BTreeMap<String, f64>,
    failures: BTreeMap<String, u64>,
}

impl Round {
    pub(super) fn of(mut measured: Measured) -> Self {
        let tasks = measured.figures.tasks as f64;
        let counts = measured.counts;
        let one = counts.trim_end_matches('s');
        let mut figures = vec![(format!("{counts}/s"), tasks / measured.elapsed.as_secs_f64())];
        for (step, name) in measured.steps.iter().enumerate() {
            if let Some((half, most)) = measured.figures.percentiles(step) {
                figures.push((format!("{name} p50 ms"), half));
                figures.push((format!("{name} p99 ms"), most));
            }
        }
        for (operation, sizes) in &measured.used.batches {
            figures.extend(sizes.mean().map(|mean| (format!("mean batch, {operation}"), mean)));
        }
        figures.extend(measured.used.wal.map(|bytes| (format!("WAL B/{one}"), bytes as f64 / tasks)));
        let cost = measured.used.cost;
        for (party, seconds) in [("PostgreSQL", cost.postgres), ("server", cost.server), ("generator", cost.generator)]
        {
            figures.extend(seconds.map(|seconds| (format!("{party} CPU µs/{one}"), seconds * MICROS / tasks)));
        }
        let sessions = measured.used.sessions.iter();
        Self {
            figures,
            sessions: sessions.map(|(doing, seconds)| (doing.clone(), seconds * MICROS / tasks)).collect(),
            failures: measured.figures.failures,
        }
    }

    /// Adds the median duration of these commits, in milliseconds, and the length of the first step
    /// in commits.
    pub(super) fn compare_with_commits(&mut self, commits: &Commits) {
        let firsts: Vec<(String, f64)> = self.figures[1..].iter().take(2).cloned().collect();
        let kinds =
            [("", "commits", &commits.at_once), (" after a pause", "commits after a pause", &commits.after_pause)];
        for (kind, unit, millis) in kinds {
            let Some(commit) = median(millis) else { continue };
            self.figures.push((format!("one commit{kind} p50 ms"), commit));
            let ratios = firsts.iter().map(|(name, value)| (name.replace(" ms", &format!(", {unit}")), value / commit));
            self.figures.extend(ratios);
        }
    }
}

#[derive(Debug)]
pub(super) struct Summary {
    columns: Vec<String>,
    rounds: Vec<Vec<Round>>,
}

impl Summary {
    pub(super) fn new(columns: Vec<String>) -> Self {
        let rounds = columns.iter().map(|_| Vec::new()).collect();
        Self { columns, rounds }
    }

    pub(super) fn add(&mut self, column: usize, round: Round) {
        self.rounds[column].push(round);
    }

    /// Median of a column's first figure, which is a rate.
    pub(super) fn rate(&self, column: usize) -> Option<f64> {
        let rates: Vec<f64> =
            self.rounds[column].iter().filter_map(|round| round.figures.first()).map(|rate| rate.1).collect();
        median(&rates)
    }

    /// Renders a table with one column per ratio, and below it the distribution of PostgreSQL's
    /// time.
    pub(super) fn render(&self, title: &str, ratios: &[(usize, usize)]) -> String {
        let mut text = format!("{title}\n\n");
        let quotients =
            ratios.iter().map(|(over, under)| format!("{} / {}", self.columns[*over], self.columns[*under]));
        let head = [String::new()].into_iter().chain(self.columns.iter().cloned()).chain(quotients);
        let head: Vec<String> = head.collect();
        write_line(&mut text, &head);
        writeln!(text, "|{}", "---|".repeat(head.len())).expect("a String takes whatever is written");
        for figure in self.names() {
            let values: Vec<Vec<Option<f64>>> =
                (0..self.columns.len()).map(|column| self.values(column, figure)).collect();
            let medians = values.iter().map(|values| {
                let known: Vec<f64> = values.iter().copied().flatten().collect();
                cell(median(&known).map(significant))
            });
            let quotients = ratios.iter().map(|(over, under)| cell(median_ratio(&values[*over], &values[*under])));
            let line = [figure.to_owned()].into_iter().chain(medians).chain(quotients);
            write_line(&mut text, &line.collect::<Vec<_>>());
        }
        for column in 0..self.columns.len() {
            self.write_sessions(column, &mut text);
            self.write_failures(column, &mut text);
        }
        text
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.rounds.iter().flatten().flat_map(|round| &round.figures) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    fn values(&self, column: usize, figure: &str) -> Vec<Option<f64>> {
        let value = |round: &Round| round.figures.iter().find(|(name, _)| name == figure).map(|(_, value)| *value);
        self.rounds[column].iter().map(value).collect()
    }

    fn write_sessions(&self, column: usize, text: &mut String) {
        let rounds = &self.rounds[column];
        let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (doing, micros) in rounds.iter().flat_map(|round| &round.sessions) {
            all.entry(doing).or_default().push(*micros);
        }
        // A session that is missing in a round used no time in it.
        let mut medians: Vec<(&str, f64)> = Vec::with_capacity(all.len());
        for (doing, mut micros) in all {
            micros.resize(rounds.len(), 0.0);
            medians.extend(median(&micros).map(|micros| (doing, micros)));
        }
        let sum: f64 = medians.iter().map(|(_, micros)| micros).sum();
        medians.retain(|(_, micros)| *micros > sum * LISTED);
        medians.sort_by(|one, other| other.1.total_cmp(&one.1));
        if !medians.is_empty() {
            let list: Vec<String> = medians.iter().map(|(doing, micros)| format!("{doing} {micros:.0}")).collect();
            writeln!(text, "\nPostgreSQL CPU µs by session, {}: {}", self.columns[column], list.join(" · "))
                .expect("a String takes whatever is written");
        }
    }

    fn write_failures(&self, column: usize, text: &mut String) {
        let mut all: BTreeMap<&str, u64> = BTreeMap::new();
        for (what, times) in self.rounds[column].iter().flat_map(|round| &round.failures) {
            *all.entry(what).or_default() += times;
        }
        for (what, times) in all {
            writeln!(text, "\n{} failed {times} times: {what}", self.columns[column])
                .expect("a String takes whatever is written");
        }
    }
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(upper, sorted[sorted.len() / 2 - 1]) })
}

/// Median of the rounds' ratios, with the lowest and highest if there are several. Skips rounds
/// that lack one of the two values.
fn median_ratio(over: &[Option<f64>], under: &[Option<f64>]) -> Option<String> {
    let pairs = over.iter().zip(under).filter_map(|(over, under)| (*over).zip(*under));
    let ratios: Vec<f64> = pairs.filter(|(_, under)| *under != 0.0).map(|(over, under)| over / under).collect();
    let (least, most) = (ratios.iter().copied().reduce(f64::min)?, ratios.iter().copied().reduce(f64::max)?);
    let middle = median(&ratios)?;
    Some(if ratios.len() == 1 { format!("{middle:.2}") } else { format!("{middle:.2} ({least:.2}–{most:.2})") })
}

fn significant(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn cell(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

fn write_line(text: &mut String, cells: &[String]) {
    writeln!(text, "| {} |", cells.join(" | ")).expect("a String takes whatever is written");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(rate: f64, doing: &[(&str, f64)]) -> Round {
        let sessions = doing.iter().map(|(doing, micros)| ((*doing).to_owned(), *micros)).collect();
        Round { figures: vec![("tasks/s".to_owned(), rate)], sessions, failures: BTreeMap::new() }
    }

    #[test]
    fn median_of_odd_and_even_numbers_of_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 9.0, 2.0]), Some(3.0));
    }

    #[test]
    fn ratio_is_median_of_round_ratios() {
        let ratio = median_ratio(&[1.0, 2.0, 9.0].map(Some), &[10.0, 1.0, 9.0].map(Some));
        assert_eq!(ratio.as_deref(), Some("1.00 (0.10–2.00)"));
        assert_eq!(median_ratio(&[Some(1.0)], &[Some(2.0)]).as_deref(), Some("0.50"));
        assert_eq!(median_ratio(&[Some(1.0)], &[Some(0.0)]), None);
        assert_eq!(median_ratio(&[], &[]), None);
    }

    #[test]
    fn round_without_figure_keeps_ratios_of_other_rounds() {
        let mut summary = Summary::new(vec!["floor".to_owned(), "tenure".to_owned()]);
        for (floor, tenure) in [(Some(8.0), None), (Some(4.0), Some(2.0)), (None, Some(1.0)), (Some(2.0), Some(1.0))] {
            for (column, value) in [floor, tenure].into_iter().enumerate() {
                let mut round = round(1.0, &[]);
                round.figures.extend(value.map(|value| ("claim p50 ms".to_owned(), value)));
                summary.add(column, round);
            }
        }
        let text = summary.render("title", &[(1, 0)]);
        assert!(text.contains("| claim p50 ms | 4.00 | 1.00 | 0.50 (0.50–0.50) |"), "{text}");
    }

    #[test]
    fn the_first_step_is_counted_in_commits() {
        let mut round = round(50.0, &[]);
        round.figures.extend([("pickup p50 ms".to_owned(), 8.0), ("pickup p99 ms".to_owned(), 20.0)]);
        round.figures.push(("create p50 ms".to_owned(), 1.0));
        round.compare_with_commits(&Commits { at_once: vec![1.0, 2.0, 9.0], after_pause: vec![4.0] });
        let added = [
            ("one commit p50 ms", 2.0),
            ("pickup p50, commits", 4.0),
            ("pickup p99, commits", 10.0),
            ("one commit after a pause p50 ms", 4.0),
            ("pickup p50, commits after a pause", 2.0),
            ("pickup p99, commits after a pause", 5.0),
        ];
        assert_eq!(round.figures[4..], added.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn a_table_has_a_cell_for_every_column_and_ratio() {
        let mut summary = Summary::new(vec!["floor".to_owned(), "tenure".to_owned()]);
        for rate in [1000.0, 1200.0, 900.0] {
            summary.add(0, round(rate, &[("floor: create", 60.0), ("walwriter", 0.1)]));
            summary.add(1, round(rate / 2.0, &[]));
        }
        summary.rounds[1][0].figures.push(("claim p50 ms".to_owned(), 1.234));
        summary.rounds[1][0].failures.insert("503".to_owned(), 2);
        let text = summary.render("title", &[(1, 0)]);
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines[1], "|  | floor | tenure | tenure / floor |");
        assert_eq!(lines[3], "| tasks/s | 1000 | 500 | 0.50 (0.50–0.50) |");
        assert_eq!(lines[4], "| claim p50 ms | - | 1.23 | - |");
        assert_eq!(lines[5], "PostgreSQL CPU µs by session, floor: floor: create 60");
        assert_eq!(lines[6], "tenure failed 2 times: 503");
    }
}
