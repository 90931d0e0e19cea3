//! `/partition/<partitionName>`: a partition group with its members.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};

use super::error::PageError;
use super::layout::{self, Cells, Page, section};
use super::overview::REFRESH;
use super::partitions::{reading_scope, state};
use super::state::Site;
use super::text;
use super::visit::Visit;
use tenure_domain::partition::{Group, Member, State, named};
use tenure_engine::ops::partitions::{self as ops, Found};

const MEMBERS_SHOWN: usize = 50;

/// `GET /partition/:partitionName`
pub(super) async fn partition(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let name = named(visit.param("partitionName"))
        .map_err(|_| PageError::NotFound("This is not the name of a partition group.".to_owned()))?;
    visit.authorize(reading_scope(&name))?;
    let Found { stored, state } = ops::get(app.engine.partition_parts(), &name).await?;
    let body = html! {
        h1 { span.kind { "Partition group" } (name) }
        (facts(&state, stored.created, stored.now))
        (members_section(&name, &state, stored.now))
    };
    Ok(Page::new(format!("Partition group {name}"), Some(REFRESH), body))
}

fn facts(whole: &State, created: DateTime<Utc>, now: DateTime<Utc>) -> Markup {
    let State { group, members } = whole;
    html! { dl.facts {
        div { dt { "State" } dd { (state(group, now)) } }
        div { dt { "Members" } dd { (members.len()) } }
        div { dt { "Active map" } dd { (group.epoch) ", shares: " (group.replicas) } }
        @if let Some(next) = group.next {
            div { dt { "Next map" } dd {
                (group.proposed) ", shares: " (next.replicas) ", waits for "
                (members.values().filter(|member| group.waits_for(member, now)).count())
            } }
        }
        div { dt { "Interval" } dd { (text::span(TimeDelta::seconds(group.interval))) } }
        div { dt { "Created" } dd { (layout::time(created, now)) } }
    } }
}

/// Members with a share come first, in the order of the shares.
fn members_section(name: &str, state: &State, now: DateTime<Utc>) -> Markup {
    let members = state.by_share();
    if members.is_empty() {
        return section("Members", &html! {}, &layout::empty(&html! { p { "No member has joined." } }));
    }
    let rows: Vec<Cells> =
        members.iter().take(MEMBERS_SHOWN).map(|(name, member)| cells(&state.group, name, member, now)).collect();
    let others = members.len() - rows.len();
    let note = html! { @if others > 0 { (rows.len()) " of " } (members.len()) };
    let body = html! {
        (layout::table(&rows))
        @if others > 0 {
            div.note { p { (others) " more: " code { "tenure partition show " (name) } " lists all of them." } }
        }
    };
    section("Members", &note, &body)
}

fn cells(group: &Group, name: &str, member: &Member, now: DateTime<Utc>) -> Cells {
    let number = |number: Option<i64>| number.map_or_else(layout::none, |number| html! { (number) });
    let valid_until = group.valid_until(member);
    let (word, class) = if group.waits_for(member, now) {
        ("draining", "running")
    } else if member.index.is_none() {
        ("waiting", "pending")
    } else if valid_until <= now {
        ("silent", "exception")
    } else {
        ("active", "completed")
    };
    let until = member.index.map_or_else(layout::none, |_| layout::time(valid_until, now));
    vec![
        ("Member", html! { (name) }),
        ("State", html! { span class={ "state " (class) } { (word) } }),
        (">Index", number(member.index.map(i64::from))),
        (">Next index", number(member.next_index.map(i64::from))),
        ("Last tick", layout::time(group.last_tick(member), now)),
        ("Share until", until),
        (">Acknowledged map", number(group.acknowledged(member))),
    ]
}
