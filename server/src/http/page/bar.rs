//! A bar of coloured parts as SVG: the policy allows no styles within a page.

use maud::{Markup, html};

/// Width of the drawing, which the browser stretches.
const WIDTH: u64 = 1_000;
/// Least width of a part, so that it can be seen.
const PART_MIN: u64 = 6;

pub(super) struct Part {
    /// A class of style.css.
    pub(super) class: &'static str,
    pub(super) amount: u64,
    /// Shown under the pointer.
    pub(super) words: String,
}

/// Empty parts are omitted. Readers of screens get all words.
pub(super) fn bar(parts: &[Part]) -> Markup {
    let parts: Vec<&Part> = parts.iter().filter(|part| part.amount > 0).collect();
    if parts.is_empty() {
        return Markup::default();
    }
    let widths = widths(&parts.iter().map(|part| part.amount).collect::<Vec<_>>());
    let label = parts.iter().map(|part| part.words.as_str()).collect::<Vec<_>>().join("; ");
    let mut from = 0;
    let placed = parts.iter().zip(widths).map(|(part, width)| {
        let at = from;
        from += width;
        (part, at, width)
    });
    html! {
        svg.bar viewBox={ "0 0 " (WIDTH) " 14" } preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (part, at, width) in placed {
                rect class=(part.class) x=(at) width=(width) height="14" { title { (part.words) } }
            }
        }
    }
}

/// Shares of [`WIDTH`], at least [`PART_MIN`] each, for amounts above zero.
fn widths(amounts: &[u64]) -> Vec<u64> {
    let total = amounts.iter().map(|&amount| u128::from(amount)).sum::<u128>().max(1);
    let room = WIDTH.saturating_sub(PART_MIN * amounts.len() as u64);
    let share = |&amount: &u64| PART_MIN + u64::try_from(u128::from(amount) * u128::from(room) / total).unwrap_or(room);
    amounts.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_proportional_and_visible() {
        assert_eq!(widths(&[1, 1]), [500, 500]);
        assert_eq!(widths(&[1, 1_000_000]), [6, 993]);
        assert_eq!(widths(&[u64::MAX, u64::MAX]), [500, 500]);
        assert!(widths(&[]).is_empty());
        assert!(widths(&[1; 150]).iter().sum::<u64>() <= WIDTH);
    }

    #[test]
    fn bar_shows_parts_side_by_side() {
        let part = |class, amount| Part { class, amount, words: format!("<{amount}>") };
        let shown = bar(&[part("a", 1), part("b", 0), part("c", 3)]).into_string();
        assert!(shown.contains("aria-label=\"&lt;1&gt;; &lt;3&gt;\""), "{shown}");
        assert!(shown.contains("<rect class=\"a\" x=\"0\" width=\"253\""), "{shown}");
        assert!(shown.contains("<rect class=\"c\" x=\"253\" width=\"747\""), "{shown}");
        assert!(!shown.contains("class=\"b\""), "{shown}");
        assert_eq!(bar(&[part("a", 0)]).into_string(), "");
    }
}
