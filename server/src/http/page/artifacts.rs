//! Artifacts of a task's last run, on the task's page.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use percent_encoding::utf8_percent_encode;
use tenure_api::ids::{RunId, TaskId};

use super::error::PageError;
use super::layout::{self, Cells, section, table};
use super::state::Site;
use super::text;
use super::visit::{SEGMENT, Visit};
use crate::auth::Principal;
use crate::http::api::artifacts::artifact_info::blob;
use crate::http::api::artifacts::reading::scopes_to_read;
use tenure_domain::artifact::{Artifact, Details, Stored};
use tenure_domain::scopes::Expression;
use tenure_engine::blobs::{BlobName, StoredBlob};
use tenure_store::artifacts;

const ARTIFACTS_MAX: usize = 50;

pub(super) struct Listed {
    task: TaskId,
    run: RunId,
    rows: Vec<Stored>,
    bytes: HashMap<BlobName, StoredBlob>,
    anonymous: Principal,
}

/// Reads the artifacts of the last run; none without a run.
pub(super) async fn find(app: &Site, task: TaskId) -> Result<Option<Listed>, PageError> {
    let anonymous = app.intake.authenticator.anonymous().await.map_err(|error| super::visit::lookup_failed(&error))?;
    let mut conn = app.engine.pool.acquire().await?;
    let Some((seq, run)) = artifacts::find_run(&mut conn, task, None).await? else { return Ok(None) };
    // One more than shown, to detect further artifacts.
    let rows = artifacts::list(&mut conn, seq, run, "", ARTIFACTS_MAX as i64 + 1).await?;
    let stored = |row: &&Stored| matches!(row.artifact.details, Details::S3 | Details::Object { .. });
    let names: Vec<BlobName> = rows.iter().filter(stored).map(|row| blob(task, run, &row.artifact)).collect();
    let bytes = if names.is_empty() { HashMap::new() } else { app.engine.blobs.find(&mut *conn, &names).await? };
    Ok(Some(Listed { task, run, rows, bytes, anonymous }))
}

pub(super) fn artifacts_section(visit: &Visit, listed: &Listed, now: DateTime<Utc>) -> Markup {
    if listed.rows.is_empty() {
        return Markup::default();
    }
    let required = Expression::from(format!("queue:list-artifacts:{}:{}", listed.task, listed.run));
    if !visit.may(required.clone()) {
        return section("Artifacts", &html! {}, &html! { div.note { (layout::denied(visit, &required)) } });
    }
    let note =
        html! { "of run " (listed.run) @if listed.rows.len() > ARTIFACTS_MAX { "; the first " (ARTIFACTS_MAX) } };
    let rows: Vec<_> = listed.rows.iter().take(ARTIFACTS_MAX).map(|row| cells(visit, listed, row, now)).collect();
    section("Artifacts", &note, &table(&rows))
}

fn cells(visit: &Visit, listed: &Listed, row: &Stored, now: DateTime<Utc>) -> Cells {
    let Artifact { name, details, content_type, content_length, expires } = &row.artifact;
    let stored = listed.bytes.get(&blob(listed.task, listed.run, &row.artifact)).map(|blob| blob.size);
    let stored_as = html! {
        @match details {
            // Here, as expected.
            Details::S3 | Details::Object { .. } => (layout::none()),
            Details::Reference { .. } => "elsewhere",
            Details::Link { artifact } => { "link to " (artifact) },
            Details::Error { reason, message } => { span.bad { (reason) } " " (message) },
        }
    };
    vec![
        ("Artifact", link(visit, listed, name)),
        (">Size", stored.or(*content_length).map_or_else(layout::none, size)),
        ("Type", html! { (content_type) }),
        ("Stored as", stored_as),
        (">Expires", layout::time(*expires, now)),
    ]
}

fn size(bytes: i64) -> Markup {
    html! { span title={ (text::count(bytes)) " bytes" } { (text::size(bytes)) } }
}

/// Links only artifacts that anonymous callers may read, because the browser sends no credentials.
fn link(visit: &Visit, listed: &Listed, name: &str) -> Markup {
    if listed.anonymous.authorize(&scopes_to_read(name)).is_err() {
        return html! { (name) };
    }
    let path = format!(
        "/api/queue/v1/task/{}/runs/{}/artifacts/{}",
        listed.task,
        listed.run,
        utf8_percent_encode(name, SEGMENT)
    );
    html! { a href=(visit.link(&path)) { (name) } }
}
