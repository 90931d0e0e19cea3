//! Numbers over time on the overview and on the page of a queue: charts, and the last hour beside
//! the hour before.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;
use tenure_api::states::RunState;

use super::charts::{self, Chart, Scale, Series, Shape};
use super::layout;
use super::text;
use super::visit::Visit;
use tenure_domain::statistics::{BOUNDS, BUCKETS, Numbers, at_most, bucket};
use tenure_domain::trend::{self, Point, Span};
use tenure_store::statistics;

/// Columns of the lines beside figures.
const SPARK_COLUMNS: usize = 30;
/// Labelled lines of a chart of waits.
const WAIT_MARKS: usize = 3;

/// Numbers of a queue, or of all queues together.
pub(super) struct Trend {
    span: Span,
    columns: Vec<Point>,
    /// By minute.
    hour: Vec<Numbers>,
    /// Sums of the last hour, and of the hour before.
    last: Numbers,
    before: Numbers,
}

/// Returns the time that the charts of this page show.
pub(super) fn span_of(visit: &Visit) -> Span {
    visit.query("range").and_then(Span::find).unwrap_or_default()
}

/// `key` is as in `queue_minutes`.
pub(super) async fn read(
    conn: &mut PgConnection,
    key: i32,
    span: Span,
    now: DateTime<Utc>,
) -> Result<Trend, sqlx::Error> {
    let hours = trend::two_hours(now);
    let minutes = hours.fill(statistics::list(conn, key, hours.from, hours.to).await?);
    let range = span.range(now);
    let steps = if span == Span::Hour {
        minutes.iter().filter(|(at, _)| range.from <= *at && *at < range.to).cloned().collect()
    } else {
        range.fill(statistics::list(conn, key, range.from, range.to).await?)
    };
    let middle = hours.to - TimeDelta::hours(1);
    let (before, last) = trend::halves(&minutes, middle);
    let hour = minutes.into_iter().filter(|(at, _)| *at >= middle).map(|(_, numbers)| numbers).collect();
    Ok(Trend { span, columns: span.columns(&steps), hour, last, before })
}

impl Trend {
    pub(super) fn last(&self) -> &Numbers {
        &self.last
    }

    pub(super) fn before(&self) -> &Numbers {
        &self.before
    }

    /// A line of the last hour.
    pub(super) fn spark(&self, name: &str, number: fn(&Numbers) -> i64) -> Markup {
        let numbers: Vec<i64> = self.hour.iter().map(number).collect();
        let most = numbers.iter().copied().max().unwrap_or(0);
        if most == 0 {
            return html! {};
        }
        let label = format!("{name} in the last hour: at most {} a minute", text::count(most));
        charts::spark(&trend::thin(numbers, SPARK_COLUMNS), &label)
    }

    /// All charts, or a sentence if nothing happened.
    pub(super) fn charts(&self) -> Markup {
        let is_still = |(_, numbers): &Point| *numbers == Numbers::default();
        if self.columns.iter().all(is_still) {
            let words = match self.span {
                Span::Hour => "No task was created, waited or ended in the last hour. Numbers appear after a minute.",
                Span::Day => "No task was created, waited or ended in the last day.",
                Span::Week => "No task was created, waited or ended in the last week.",
            };
            return layout::section("Charts", &html! {}, &layout::empty(&html! { p { (words) } }));
        }
        html! { (self.resolved().panel()) (self.pending().panel()) (self.waits().panel()) }
    }

    fn chart(&self, title: String, shape: Shape, scale: Scale, series: Vec<Series>, words: Vec<String>) -> Chart {
        let shown: Vec<String> = series
            .iter()
            .filter(|one| !one.shown.is_empty())
            .map(|one| format!("{} {}", one.name, one.shown))
            .collect();
        let label = format!("{title}, the last {}; {}", self.span.word(), shown.join(", "));
        let times = self.columns.iter().map(|(at, _)| self.axis_time(*at)).collect();
        Chart { title, label, shape, series, scale, words, times }
    }

    fn resolved(&self) -> Chart {
        let numbers = |state| self.numbers(move |numbers| numbers.resolved(state));
        let states = [
            ("completed", "c1", RunState::Completed),
            ("failed", "c2", RunState::Failed),
            ("exception", "c3", RunState::Exception),
        ];
        let of_states = states.map(|(name, class, state)| (name, class, numbers(state)));
        let sums = (0..self.columns.len()).map(|n| of_states.iter().map(|(.., numbers)| numbers[n]).sum::<i64>());
        let most = sums.max().unwrap_or(0);
        let words = self.words(|n| {
            let ended = of_states.iter().filter(|(.., numbers)| numbers[n] > 0);
            ended.map(|(name, _, numbers)| format!("{} {name}", text::count(numbers[n]))).collect()
        });
        let series = of_states.into_iter().map(|(name, class, numbers)| {
            let all: i64 = numbers.iter().sum();
            counts(name, class, &numbers, text::count(all))
        });
        let title = format!("Resolved per {}", self.span.column());
        self.chart(title, Shape::Stack, count_scale(most), series.collect(), words)
    }

    fn pending(&self) -> Chart {
        let pending = self.numbers(|numbers| numbers.pending_most);
        let created = self.numbers(|numbers| numbers.created);
        let most = pending.iter().chain(&created).copied().max().unwrap_or(0);
        let words = self.words(|n| {
            let all = [(pending[n], "pending"), (created[n], "created")];
            all.iter()
                .filter(|(number, _)| *number > 0)
                .map(|(number, name)| format!("{} {name}", text::count(*number)))
                .collect()
        });
        let at_end = pending.last().copied().unwrap_or(0);
        let series = vec![
            counts("pending", "c4", &pending, text::count(at_end)),
            counts("created", "c3", &created, text::count(created.iter().sum())),
        ];
        let title = format!("Pending, and created per {}", self.span.column());
        self.chart(title, Shape::Lines, count_scale(most), series, words)
    }

    /// Durations are known by their buckets, whose bounds have equal distances here.
    fn waits(&self) -> Chart {
        let shares = [("half within", "c1", 0.5), ("95 % within", "c3", 0.95)];
        let of = |share: f64| -> Vec<Option<f64>> {
            self.columns.iter().map(|(_, numbers)| at_most(&numbers.waits, share)).collect()
        };
        let waits = shares.map(|(name, class, share)| (name, class, of(share)));
        let words = self.words(|n| {
            waits.iter().filter_map(|(name, _, seconds)| Some(format!("{name} {}", duration(seconds[n]?)))).collect()
        });
        let series: Vec<Series> = waits
            .into_iter()
            .map(|(name, class, seconds)| {
                let latest = seconds.iter().rev().find_map(|seconds| *seconds);
                let shown = latest.map_or_else(String::new, duration);
                Series { name, class, values: seconds.iter().map(|seconds| seconds.map(level)).collect(), shown }
            })
            .collect();
        let top = series.iter().flat_map(|one| one.values.iter().flatten()).copied().fold(1.0, f64::max);
        self.chart("Wait before the start".to_owned(), Shape::Lines, wait_scale(top as usize), series, words)
    }

    fn numbers(&self, number: impl Fn(&Numbers) -> i64) -> Vec<i64> {
        self.columns.iter().map(|(_, numbers)| number(numbers)).collect()
    }

    /// Words of each column, after its time.
    fn words(&self, of: impl Fn(usize) -> Vec<String>) -> Vec<String> {
        let column = |(n, (at, _)): (usize, &Point)| {
            let words = of(n);
            let words = if words.is_empty() { "none".to_owned() } else { words.join(", ") };
            format!("{}: {words}", self.time(*at))
        };
        self.columns.iter().enumerate().map(column).collect()
    }

    fn time(&self, at: DateTime<Utc>) -> String {
        let format = if self.span == Span::Week { "%a %H:%M" } else { "%H:%M" };
        at.format(format).to_string()
    }

    fn axis_time(&self, at: DateTime<Utc>) -> String {
        let format = if self.span == Span::Week { "%a %d" } else { "%H:%M" };
        at.format(format).to_string()
    }
}

/// Links to the same page with charts of other times. `command` prints the numbers.
pub(super) fn spans(visit: &Visit, span: Span, command: &str) -> Markup {
    let path = visit.link(visit.place.split('?').next().unwrap_or("/"));
    let rest = if visit.query("refresh") == Some("off") { "&refresh=off" } else { "" };
    html! {
        p.spans {
            "Charts of the last "
            @for one in Span::ALL {
                a href={ (path) "?range=" (one.as_str()) (rest) } aria-current=[(one == span).then_some("true")] { (one.word()) } " "
            }
            span.dim { "in UTC; as numbers: " code { (command) " --since " (span.as_str()) } }
        }
    }
}

fn counts(name: &'static str, class: &'static str, numbers: &[i64], shown: String) -> Series {
    Series { name, class, values: numbers.iter().map(|number| Some(*number as f64)).collect(), shown }
}

fn count_scale(most: i64) -> Scale {
    Scale::counts(most as f64, |mark| text::count(mark as i64))
}

/// Height of a duration, from 1 for the first bucket.
fn level(seconds: f64) -> f64 {
    (bucket(seconds) + 1) as f64
}

/// Labels some of the bounds up to this level, and the top.
fn wait_scale(top: usize) -> Scale {
    let top = top.clamp(1, BUCKETS);
    let every = top.div_ceil(WAIT_MARKS);
    let mut levels: Vec<usize> =
        (0..WAIT_MARKS).filter_map(|n| top.checked_sub(n * every)).filter(|level| *level > 0).collect();
    levels.push(0);
    let word = |level: usize| match level.checked_sub(1) {
        None => "0 s".to_owned(),
        Some(n) => BOUNDS.get(n).map_or_else(|| "more".to_owned(), |bound| duration(*bound)),
    };
    Scale { top: top as f64, marks: levels.into_iter().map(|level| (level as f64, word(level))).collect() }
}

/// Seconds in words, such as `100 ms` or `5 m`.
pub(super) fn duration(seconds: f64) -> String {
    text::age(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_labelled_by_bounds_of_buckets() {
        let words = |top| -> Vec<String> { wait_scale(top).marks.into_iter().map(|(_, word)| word).collect() };
        assert_eq!(words(0), ["100 ms", "0 s"]);
        assert_eq!(words(1), ["100 ms", "0 s"]);
        assert_eq!(words(7), ["5 m", "5 s", "100 ms", "0 s"]);
        assert_eq!(words(BUCKETS), ["more", "15 m", "5 s", "0 s"]);
        assert_eq!(words(100), words(BUCKETS));
        assert_eq!([0.0, 0.1, 60.0, 1e9].map(level), [1.0, 1.0, 6.0, 12.0]);
    }

    #[test]
    fn charts_without_numbers_are_a_sentence() {
        for span in Span::ALL {
            let range = span.range(DateTime::UNIX_EPOCH);
            let columns = span.columns(&range.fill([]));
            let mut trend =
                Trend { span, columns, hour: Vec::new(), last: Numbers::default(), before: Numbers::default() };
            let text = trend.charts().into_string();
            assert!(text.contains("No task") && !text.contains("<svg"), "{text}");
            assert_eq!(trend.spark("Pending", |numbers| numbers.pending_most).0, "");
            trend.columns[3].1.created = 5;
            let text = trend.charts().into_string();
            assert_eq!(text.matches("<svg").count(), 3, "{text}");
            assert!(text.contains(": 5 created</title>") && !text.contains("NaN"), "{text}");
            assert!(text.len() < 22_000, "{} bytes", text.len());
        }
    }
}
