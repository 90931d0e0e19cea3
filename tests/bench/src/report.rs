//! The row that a run prints, as part of a Markdown table.

use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum as _;

use super::Settings;
use super::cost::Cost;
use super::figures::Figures;

/// How far a window may end before its time without having been cut short.
const TIMER: Duration = Duration::from_millis(20);

/// Everything in a row beside the lanes' own figures.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) steps: &'a [&'a str],
    /// What the mode counts, in the plural.
    pub(crate) counts: &'a str,
    /// How long was measured, which is less than asked for when the tasks ran out.
    pub(crate) elapsed: Duration,
    pub(crate) cost: Cost,
    /// Bytes of WAL written while measuring.
    pub(crate) wal: Option<i64>,
    pub(crate) durability: String,
}

impl Row<'_> {
    pub(crate) fn render(&self, figures: &mut Figures) -> String {
        let service = if self.settings.azure_queue.is_some() { "Azure queue" } else { "Tenure" };
        let mode = self.settings.mode.to_possible_value().map(|value| value.get_name().to_owned());
        let mut columns = vec![
            ("service".to_owned(), service.to_owned()),
            ("mode".to_owned(), or_dash(mode)),
            ("connections".to_owned(), self.settings.connections().to_string()),
            ("prefill".to_owned(), self.settings.depth().to_string()),
            ("seconds".to_owned(), format!("{:.1}", self.elapsed.as_secs_f64())),
            (format!("{}/s", self.counts), format!("{:.0}", figures.tasks as f64 / self.elapsed.as_secs_f64())),
        ];
        for (step, name) in self.steps.iter().enumerate() {
            let times = figures.percentiles(step).map(|(half, most)| format!("{half:.2} / {most:.2}"));
            // Rows of modes with one step fit into one table.
            let name = if self.steps.len() == 1 { String::new() } else { format!("{name} ") };
            columns.push((format!("{name}p50 / p99 ms"), or_dash(times)));
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
        columns.push((format!("WAL B/{}", self.counts.trim_end_matches('s')), or_dash(wal)));
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
        if self.elapsed + TIMER < Duration::from_secs(self.settings.seconds) {
            let elapsed = self.elapsed.as_secs_f64();
            writeln!(text, "all {} were used up after {elapsed:.1} s; the figures are of that time", self.counts)
                .expect("a String takes whatever is written");
        }
        if figures.empty > 0 {
            writeln!(text, "{} gets found nothing; they count nowhere", figures.empty)
                .expect("a String takes whatever is written");
        }
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
        let settings = Settings::parse_from(["tenure-bench", "put-to-visible", "--connections", "8"]);
        let cost = Cost { server: Some(1.234), postgres: None, generator: Some(0.5) };
        let mut figures = Figures::new(1);
        figures.tasks = 400;
        figures.record(0, Duration::from_micros(2500));
        figures.empty = 2;
        figures.failures.insert("503".to_owned(), 3);
        let elapsed = Duration::from_secs(2);
        let row = Row {
            settings: &settings,
            steps: &["visible"],
            counts: "messages",
            elapsed,
            cost,
            wal: Some(1200),
            durability: "x".into(),
        };
        let text = row.render(&mut figures);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].matches('|').count(), lines[2].matches('|').count());
        assert_eq!(lines[0].matches('|').count(), lines[1].matches('|').count());
        assert_eq!(
            lines[2],
            "| Tenure | put-to-visible | 8 | 0 | 2.0 | 200 | 2.50 / 2.50 | 1.23 | - | 0.50 | 3 | 3 | x |"
        );
        assert!(
            lines[0].contains("| messages/s | p50 / p99 ms |") && lines[0].contains("| WAL B/message |"),
            "{}",
            lines[0]
        );
        assert_eq!(lines[3], "all messages were used up after 2.0 s; the figures are of that time");
        assert_eq!(lines[4], "2 gets found nothing; they count nowhere");
        assert_eq!(lines[5], "failed 3 times: 503");
    }
}
