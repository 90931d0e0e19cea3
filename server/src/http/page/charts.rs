//! Charts as SVG, without a script or a style of their own: numbers appear under the pointer by
//! `title`, and a label has the essence for readers of screens.

mod geometry;

use maud::{Markup, html};

use self::geometry::{Area, scale_top, short, stack};

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 170.0;
const AREA: Area = Area { left: 0.0, top: 20.0, width: WIDTH, height: 126.0 };
const SPARK_WIDTH: f64 = 80.0;
const SPARK_HEIGHT: f64 = 22.0;
const SPARK: Area = Area { left: 0.0, top: 2.0, width: SPARK_WIDTH, height: 18.0 };
const BAR_WIDTH: f64 = 100.0;

pub(super) struct Series {
    pub name: &'static str,
    /// Of the colour, such as `c1`.
    pub class: &'static str,
    /// None where there is none, such as the wait where no run started.
    pub values: Vec<Option<f64>>,
    /// Number beside the name.
    pub shown: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Lines,
    /// Surfaces above each other.
    Stack,
}

/// Heights of the labelled lines.
pub(super) struct Scale {
    pub top: f64,
    pub marks: Vec<(f64, String)>,
}

impl Scale {
    /// For counts up to `most`.
    pub(super) fn counts(most: f64, word: impl Fn(f64) -> String) -> Self {
        let top = scale_top(most);
        Self { top, marks: [0.0, top / 2.0, top].map(|mark| (mark, word(mark))).into() }
    }
}

pub(super) struct Chart {
    pub title: String,
    /// For readers of screens.
    pub label: String,
    pub shape: Shape,
    pub series: Vec<Series>,
    pub scale: Scale,
    /// Time and numbers of each column, such as `12:00: 5 created`, under the pointer.
    pub words: Vec<String>,
    /// Start of each column, for the labels of the axis.
    pub times: Vec<String>,
}

impl Chart {
    pub(super) fn panel(&self) -> Markup {
        let columns = self.words.len();
        html! { section.panel.chart {
            header { h2 { (self.title) } span.aside { @for one in &self.series {
                span class={ "entry " (one.class) } { (one.name) @if !one.shown.is_empty() { " " b { (one.shown) } } } " "
            } } }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.label) {
                (self.marks())
                @match self.shape {
                    Shape::Lines => (self.lines()),
                    Shape::Stack => (self.surfaces()),
                }
                (self.axis())
                g.hits { @for (n, words) in self.words.iter().enumerate() {
                    path d=(AREA.column(n, columns)) { title { (words) } }
                } }
            }
            @if columns > 0 { (self.table()) }
        } }
    }

    /// The words of the columns, for those who do not see the chart or have no pointer.
    fn table(&self) -> Markup {
        html! { details {
            summary { "As a table" }
            table {
                thead { tr { th scope="col" { "From" } th scope="col" { "Numbers" } } }
                tbody { @for words in &self.words {
                    @let (time, numbers) = words.split_once(": ").unwrap_or((words.as_str(), ""));
                    tr { td { (time) } td { (numbers) } }
                } }
            }
        } }
    }

    fn marks(&self) -> Markup {
        html! { @for (mark, word) in &self.scale.marks {
            @let y = AREA.y(*mark, self.scale.top);
            path.grid d={ "M0 " (short(y)) "h" (WIDTH) } {}
            text x="2" y=(short(y - 4.0)) { (word) }
        } }
    }

    fn lines(&self) -> Markup {
        html! { @for one in &self.series {
            path class={ "line " (one.class) } d=(AREA.line(&one.values, self.scale.top)) {}
        } }
    }

    /// The highest surface first: the others cover its lower part.
    fn surfaces(&self) -> Markup {
        let filled: Vec<Vec<f64>> =
            self.series.iter().map(|one| one.values.iter().map(|value| value.unwrap_or(0.0)).collect()).collect();
        let sums = stack(&filled);
        html! { @for (n, one) in self.series.iter().enumerate().rev() {
            @if filled[n].iter().any(|value| *value > 0.0) {
                path class={ "surface " (one.class) } d=(AREA.surface(&sums[n], self.scale.top)) {}
            }
        } }
    }

    fn axis(&self) -> Markup {
        let last = self.times.len().saturating_sub(1);
        let y = short(HEIGHT - 6.0);
        html! {
            @if let Some(first) = self.times.first() { text x="2" y=(y) { (first) } }
            @for quarter in 1..4 {
                @let n = last * quarter / 4;
                @if n > 0 && n < last {
                    text.minor[quarter != 2] x=(short(AREA.x(n, self.times.len()))) y=(y) text-anchor="middle" { (self.times[n]) }
                }
            }
            @if last > 0 { text x=(short(WIDTH - 2.0)) y=(y) text-anchor="end" { (self.times[last]) } }
        }
    }
}

/// A small line; empty without numbers.
pub(super) fn spark(numbers: &[i64], label: &str) -> Markup {
    if numbers.is_empty() {
        return html! {};
    }
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    let values: Vec<Option<f64>> = numbers.iter().map(|number| Some(*number as f64)).collect();
    html! {
        svg.spark viewBox={ "0 0 " (SPARK_WIDTH) " " (SPARK_HEIGHT) } width=(SPARK_WIDTH) height=(SPARK_HEIGHT) role="img" aria-label=(label) {
            path d=(SPARK.line(&values, most as f64)) {}
        }
    }
}

/// A part of a bar.
pub(super) struct Part {
    pub name: &'static str,
    pub class: &'static str,
    pub number: i64,
}

/// One bar of several parts, with their names and numbers below; empty without numbers.
pub(super) fn bar(parts: &[Part], word: impl Fn(i64) -> String) -> Markup {
    let all: i64 = parts.iter().map(|part| part.number.max(0)).sum();
    if all == 0 {
        return html! {};
    }
    let width = |number: i64| BAR_WIDTH * number.max(0) as f64 / all as f64;
    let label: Vec<String> = parts.iter().map(|part| format!("{} {}", word(part.number), part.name)).collect();
    let mut lefts = Vec::with_capacity(parts.len());
    let mut left = 0.0;
    for part in parts {
        lefts.push(left);
        left += width(part.number);
    }
    html! {
        svg.parts viewBox={ "0 0 " (BAR_WIDTH) " 8" } preserveAspectRatio="none" role="img" aria-label=(label.join(", ")) {
            @for (part, left) in parts.iter().zip(&lefts) {
                rect class=(part.class) x=(short(*left)) width=(short(width(part.number))) height="8" { title { (word(part.number)) " " (part.name) } }
            }
        }
        p.entries { @for part in parts { span class={ "entry " (part.class) } { (part.name) " " b { (word(part.number)) } } " " } }
    }
}

/// The share of a number in a table whose greatest number is `most`.
pub(super) fn share(number: i64, most: i64) -> Markup {
    let width = BAR_WIDTH * (number.max(0) as f64 / most.max(1) as f64).min(1.0);
    html! {
        svg.share viewBox={ "0 0 " (BAR_WIDTH) " 8" } preserveAspectRatio="none" aria-hidden="true" {
            rect width=(short(width)) height="8" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(shape: Shape, values: &[Option<f64>]) -> String {
        let columns = values.len();
        let series = |class| Series { name: "<i>", class, values: values.to_vec(), shown: "7".to_owned() };
        let chart = Chart {
            title: "Title".to_owned(),
            label: "a \"label\"".to_owned(),
            shape,
            series: vec![series("c1"), series("c2")],
            scale: Scale::counts(3.0, short),
            words: (0..columns).map(|n| format!("12:{n:02}: {n} created")).collect(),
            times: (0..columns).map(|n| format!("12:{n:02}")).collect(),
        };
        chart.panel().into_string()
    }

    #[test]
    fn chart_of_any_length_is_drawn() {
        for columns in [0, 1, 2, 3, 60] {
            for shape in [Shape::Lines, Shape::Stack] {
                for value in [None, Some(0.0), Some(3.0)] {
                    let text = chart(shape, &vec![value; columns]);
                    assert!(!text.contains("NaN") && !text.contains("style=") && !text.contains("<i>"), "{text}");
                    assert!(text.contains("role=\"img\" aria-label=\"a &quot;label&quot;\""), "{text}");
                    assert_eq!(text.matches("<title>").count(), columns);
                    assert_eq!(text.matches("</td></tr>").count(), columns);
                }
            }
        }
    }

    #[test]
    fn chart_is_small() {
        let values: Vec<Option<f64>> = (0..30).map(|n| Some(f64::from(n) / 10.0)).collect();
        for shape in [Shape::Lines, Shape::Stack] {
            let text = chart(shape, &values);
            assert!(text.contains("<tr><td>12:29</td><td>29 created</td></tr>"), "{text}");
            assert!(text.len() < 8_000, "{} bytes", text.len());
        }
    }

    #[test]
    fn spark_and_bars_need_numbers() {
        assert_eq!(spark(&[], "x").0, "");
        assert_eq!(bar(&[], |number| number.to_string()).0, "");
        assert_eq!(bar(&[Part { name: "none", class: "c1", number: 0 }], |number| number.to_string()).0, "");
        for numbers in [vec![0], vec![5], vec![0, 0], vec![1, 2, 3]] {
            let text = spark(&numbers, "pending").into_string();
            assert!(text.contains("aria-label=\"pending\"") && !text.contains("NaN"), "{text}");
        }
        assert!(share(5, 0).into_string().contains("width=\"100\""));
        assert!(share(0, 0).into_string().contains("width=\"0\""));
    }

    #[test]
    fn parts_of_bar_fill_it() {
        let part = |name, number| Part { name, class: "c1", number };
        let text = bar(&[part("can start", 3), part("delayed", 1)], |number| number.to_string()).into_string();
        assert!(text.contains("aria-label=\"3 can start, 1 delayed\""), "{text}");
        assert!(text.contains("x=\"0\" width=\"75\"") && text.contains("x=\"75\" width=\"25\""), "{text}");
    }
}
