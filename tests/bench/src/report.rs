//! The row that a run prints, as part of a Markdown table.

use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum as _;

use super::{Measured, ModeName, Settings};

/// Tolerance before a window counts as cut short.
const TIMER: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) measured: Measured,
}

impl Row<'_> {
    pub(crate) fn render(mut self) -> String {
        let Measured { steps, counts, elapsed, ref mut figures, ref used, .. } = self.measured;
        let service = match self.settings.mode {
            ModeName::Rabbit1 | ModeName::Rabbit32 => "RabbitMQ",
            _ if self.settings.azure_queue.is_some() => "Azure queue",
            _ => "Tenure",
        };
        let mode = self.settings.mode.to_possible_value().map(|value| value.get_name().to_owned());
        let mut columns = vec![
            ("service".to_owned(), service.to_owned()),
            ("mode".to_owned(), or_dash(mode)),
            ("connections".to_owned(), self.settings.connections().to_string()),
            ("prefill".to_owned(), self.settings.depth().to_string()),
            ("seconds".to_owned(), format!("{:.1}", elapsed.as_secs_f64())),
            (format!("{counts}/s"), format!("{:.0}", figures.tasks as f64 / elapsed.as_secs_f64())),
        ];
        for (step, name) in steps.iter().enumerate() {
            let times = figures.percentiles(step).map(|(half, most)| format!("{half:.2} / {most:.2}"));
            // Rows of modes with one step share a table.
            let name = if steps.len() == 1 { String::new() } else { format!("{name} ") };
            columns.push((format!("{name}p50 / p99 ms"), or_dash(times)));
        }
        for (name, seconds) in [
            ("server CPU s", used.cost.server),
            ("PostgreSQL CPU s", used.cost.postgres),
            ("generator CPU s", used.cost.generator),
        ] {
            columns.push((name.to_owned(), or_dash(seconds.map(|seconds| format!("{seconds:.2}")))));
        }
        let wal =
            used.wal.filter(|_| figures.tasks > 0).map(|bytes| format!("{:.0}", bytes as f64 / figures.tasks as f64));
        columns.push((format!("WAL B/{}", counts.trim_end_matches('s')), or_dash(wal)));
        columns.push(("failed".to_owned(), figures.failures.values().sum::<u64>().to_string()));
        columns.push(("durability".to_owned(), self.durability()));
        self.table(&columns)
    }

    fn durability(&self) -> String {
        match &self.measured.durability {
            Some(settings) => settings.clone(),
            None if self.settings.azure_queue.is_some() => "the service's own".to_owned(),
            None => "not asked (no --database-url)".to_owned(),
        }
    }

    fn table(&self, columns: &[(String, String)]) -> String {
        let Measured { counts, elapsed, figures, .. } = &self.measured;
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let mut text = String::new();
        if !self.settings.no_head {
            text.push_str(&line(columns.iter().map(|(name, _)| name.as_str()).collect()));
            text.push_str(&format!("|{}\n", "---|".repeat(columns.len())));
        }
        text.push_str(&line(columns.iter().map(|(_, value)| value.as_str()).collect()));
        if *elapsed + TIMER < Duration::from_secs(self.settings.seconds) {
            let elapsed = elapsed.as_secs_f64();
            writeln!(text, "all {counts} were used up after {elapsed:.1} s; the figures are of that time")
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
    use crate::cost::Cost;
    use crate::figures::Figures;
    use crate::observe::Used;
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
        let used = Used { cost, wal: Some(1200), ..Used::default() };
        let steps = &["visible"];
        let durability = Some("x".to_owned());
        let measured = Measured { steps, counts: "messages", elapsed, figures, used, durability };
        let text = Row { settings: &settings, measured }.render();
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
