//! The row that a run prints, as part of a Markdown table.

use std::fmt::Write;
use std::time::Duration;

use super::Settings;
use super::cost::Cost;
use super::figures::Figures;

/// Everything that a row says beside the lanes' own figures.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) steps: &'a [&'a str],
    /// How long was measured, which is less than asked for when the tasks ran out.
    pub(crate) elapsed: Duration,
    pub(crate) cost: Cost,
    /// Bytes of WAL written while measuring.
    pub(crate) wal: Option<i64>,
    pub(crate) durability: String,
}

impl Row<'_> {
    pub(crate) fn render(&self, figures: &mut Figures) -> String {
        let mut columns = vec![
            ("mode".to_owned(), format!("{:?}", self.settings.mode).to_lowercase()),
            ("connections".to_owned(), self.settings.connections.to_string()),
            ("prefill".to_owned(), self.settings.prefill.to_string()),
            ("seconds".to_owned(), format!("{:.1}", self.elapsed.as_secs_f64())),
            ("tasks/s".to_owned(), format!("{:.0}", figures.tasks as f64 / self.elapsed.as_secs_f64())),
        ];
        for (step, name) in self.steps.iter().enumerate() {
            let times = figures.percentiles(step).map(|(half, most)| format!("{half:.2} / {most:.2}"));
            columns.push((format!("{name} p50 / p99 ms"), or_dash(times)));
        }
        for (name, seconds) in [
            ("server CPU s", self.cost.server),
            ("PostgreSQL CPU s", self.cost.postgres),
            ("generator CPU s", self.cost.generator),
        ] {
            columns.push((name.to_owned(), or_dash(seconds.map(|seconds| format!("{seconds:.2}")))));
        }
        let wal =
            self.wal.filter(|_| figures.tasks > 0).map(|bytes| format!("{:.0}", bytes as f64 / figures.tasks as f64));
        columns.push(("WAL B/task".to_owned(), or_dash(wal)));
        columns.push(("failed".to_owned(), figures.failures.values().sum::<u64>().to_string()));
        columns.push(("durability".to_owned(), self.durability.clone()));
        self.table(&columns, figures)
    }

    fn table(&self, columns: &[(String, String)], figures: &Figures) -> String {
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let mut text = String::new();
        if !self.settings.no_head {
            text.push_str(&line(columns.iter().map(|(name, _)| name.as_str()).collect()));
            text.push_str(&format!("|{}\n", "---|".repeat(columns.len())));
        }
        text.push_str(&line(columns.iter().map(|(_, value)| value.as_str()).collect()));
        for (what, times) in &figures.failures {
            writeln!(text, "failed {times} times: {what}").expect("a String takes whatever is written");
        }
        text
    }
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_row_has_a_cell_for_every_column() {
        let settings = Settings::parse_from(["tenure-bench", "lifecycle", "--connections", "8"]);
        let cost = Cost { server: Some(1.234), postgres: None, generator: Some(0.5) };
        let mut figures = Figures::new(1);
        figures.tasks = 400;
        figures.record(0, Duration::from_micros(2500));
        figures.failures.insert("503".to_owned(), 3);
        let elapsed = Duration::from_secs(2);
        let row =
            Row { settings: &settings, steps: &["create"], elapsed, cost, wal: Some(1200), durability: "x".into() };
        let text = row.render(&mut figures);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].matches('|').count(), lines[2].matches('|').count());
        assert_eq!(lines[0].matches('|').count(), lines[1].matches('|').count());
        assert_eq!(lines[2], "| lifecycle | 8 | 0 | 2.0 | 200 | 2.50 / 2.50 | 1.23 | - | 0.50 | 3 | 3 | x |");
        assert_eq!(lines[3], "failed 3 times: 503");
    }
}
