//! Lists of scopes.

use maud::{Markup, html};
use tenure_domain::roles::Resolver;

use crate::http::page::layout::{self, section};
use crate::http::page::text;

const SHOWN: usize = 200;
/// In bytes; the API has the rest.
const SCOPE_SHOWN: usize = 200;

pub(super) fn scope(scope: &str) -> Markup {
    let (shown, is_cut) = text::beginning(scope, SCOPE_SHOWN);
    html! { code { (shown) @if is_cut { "…" } } }
}

pub(super) fn list<'a>(title: &str, note: &Markup, scopes: impl ExactSizeIterator<Item = &'a str>) -> Markup {
    let number = scopes.len();
    if number == 0 {
        return section(title, note, &layout::empty(&html! { p { "None." } }));
    }
    let body = html! {
        ul.scopes { @for one in scopes.take(SHOWN) { li { (scope(one)) } } }
        @if number > SHOWN { div.note { p { "The first " (SHOWN) " of " (text::count(i64::try_from(number).unwrap_or(i64::MAX))) "." } } }
    };
    section(title, note, &body)
}

/// Scopes after expansion by roles, without the scopes of every caller.
pub(super) fn expanded(resolver: &Resolver, own: impl IntoIterator<Item = String>) -> Markup {
    let title = "With its roles";
    match resolver.resolve(own) {
        Ok(scopes) => {
            let scopes: Vec<&str> = scopes.iter().collect();
            list(title, &html! { "besides what every caller may" }, scopes.into_iter())
        }
        Err(error) => section(title, &html! {}, &layout::empty(&html! { p { "Unusable: " (error) "." } })),
    }
}
