//! `/session/<sessionId>`: a session of a worker.

use std::sync::Arc;

use maud::html;
use tenure_api::ids::SessionId;

use super::actions::{self, On, Subject};
use super::error::PageError;
use super::layout::{self, Page};
use super::overview::REFRESH;
use super::pause::reading_scope;
use super::state::Site;
use super::visit::Visit;
use tenure_engine::ops::sessions;
use tenure_store::clock;
use tenure_store::worker_sessions::Stored;

/// `GET /session/:sessionId`
pub(super) async fn session(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    let id: SessionId = visit
        .param("sessionId")
        .parse()
        .map_err(|_| PageError::NotFound("This is not the id of a session.".to_owned()))?;
    let stored = sessions::find(app.engine.session_parts(), id).await?;
    let now = clock::get_now(&mut *app.engine.pool.acquire().await?).await?;
    let Stored { identity, weight, capacity, frozen, until, ended, running, assigned } = stored;
    visit.authorize(reading_scope(&identity.queue))?;
    let title = format!("Session {id}");
    let is_live = ended.is_none();
    let facts = html! { dl.facts {
        div { dt { "State" } dd { @if !is_live { "ended" } @else { (layout::state(if frozen { "frozen" } else { "active" })) } } }
        div { dt { "Worker" } dd { (layout::worker(&visit, identity.worker_group.as_str(), identity.worker_id.as_str())) } }
        div { dt { "Queue" } dd { (layout::queue(&visit, identity.queue.as_str())) } }
        div { dt { "Running" } dd { (layout::number(running)) } }
        div { dt { "Assigned" } dd { (layout::number(assigned)) } }
        div { dt { "Capacity" } dd { (layout::number(capacity.into())) } }
        div { dt { "Weight" } dd { (layout::number(weight.into())) } }
        div { dt { "Started" } dd { (layout::time(identity.started, now)) } }
        @match &ended {
            Some((at, by, _)) => { div { dt { "Ended" } dd { (layout::time(*at, now)) ", by " (by) } } }
            None => { div { dt { "Expires" } dd { (layout::time(until, now)) } } }
        }
    } };
    let subject = Subject::Session { identity, is_frozen: frozen };
    let body = html! {
        h1 { span.kind { "Session" } code { (id) } }
        (facts)
        @if is_live { (actions::bar(&visit, On::Session, &subject)) }
    };
    Ok(Page::new(title, is_live.then_some(REFRESH), body))
}
