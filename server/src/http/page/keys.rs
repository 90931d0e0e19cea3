//! A queue's busiest keys, on its page.

use maud::{Markup, html};
use tenure_api::policy::Rate;
use tenure_api::queue_keys::QueueKey;

use super::layout::{self, section, table};
use tenure_engine::ops::queue_keys::Page;

pub(super) const KEYS_MAX: u16 = 10;

/// Shows keys with runs or rules of their own, those with the most waiting runs first. Keys outlive
/// their last run for some time, so all of the first ones may be idle.
pub(super) fn keys_section(page: &Page) -> Markup {
    if page.keys.is_empty() {
        if page.next.is_none() {
            return html! {};
        }
        let none = html! { p { "None of the first " (KEYS_MAX) " has runs or its own rules now; "
        code { "tenure queue keys" } " lists the others." } };
        return section("Keys", &html! {}, &layout::empty(&none));
    }
    let cells = |row: &QueueKey| {
        let QueueKey { key, used, limit, waiting, concurrency, rate, weight } = row;
        let key = html! { @if key.is_empty() { span.dim { "without a key" } } @else { code { (key) } } };
        let limit = html! {
            @match limit { Some(limit) => (layout::number((*limit).into())), None => (layout::none()) }
            @if concurrency.is_some() { " " span.dim { "its own" } }
        };
        let rate = match rate {
            Some(Rate { count, seconds, .. }) => html! { (count) " in " (seconds) " s" },
            None => layout::none(),
        };
        let weight = weight.map_or_else(layout::none, |weight| html! { (weight.to_string()) });
        vec![
            ("Key", key),
            (">Used", layout::number((*used).into())),
            (">Limit", limit),
            (">Waiting", layout::number((*waiting).into())),
            (">Own rate", rate),
            (">Weight", weight),
        ]
    };
    let rows: Vec<_> = page.keys.iter().map(cells).collect();
    let note = html! { "most waiting first" @if page.next.is_some() { "; " (page.keys.len()) " of more" } };
    section("Keys", &note, &table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_keys_are_announced_after_idle_ones() {
        let shown = |next: Option<&str>| keys_section(&Page { keys: Vec::new(), next: next.map(str::to_owned) }).0;
        assert_eq!(shown(None), "");
        assert!(shown(Some("k")).contains("None of the first 10"), "{}", shown(Some("k")));
    }
}
