//! Pages of the event log, for polling clients.

use sqlx::PgPool;

use super::sequencer::Sequencer;
use super::{Ahead, Start};
use tenure_domain::event_filter::Filter;
use tenure_domain::events::Event;
use tenure_store::events::{self, Stretch};

/// Events read at once when a filter may reject most.
const FILTERED_PAGE: usize = 500;
/// Events scanned per filtered page. The caller continues from there.
const SCANNED_MAX: i64 = 5_000;

#[derive(Debug)]
pub enum Page {
    /// Events, oldest first, and the cursor of the next page.
    Events(Vec<Event>, i64),
    /// The next events were purged. Reading may start after this position.
    Gone(i64),
    /// The position does not exist yet.
    Ahead(Ahead),
}

/// Reads up to `limit` events that pass the filter, none from [`Start::Latest`]. Everything
/// committed before the call is in the log.
pub async fn read(
    pool: &PgPool,
    sequencer: &Sequencer,
    start: Start,
    filter: &Filter,
    limit: usize,
) -> Result<Page, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    sequencer.run(&mut conn).await?;
    let start = match start {
        Start::After(position) => position,
        Start::Latest => return Ok(Page::Events(Vec::new(), events::get_newest(&mut conn).await?)),
    };
    let page = if filter.is_open() { limit } else { FILTERED_PAGE };
    let (mut found, mut after) = (Vec::new(), start);
    loop {
        let (events, through) = match events::read_on(&mut conn, after, page).await? {
            Stretch::Events(events, through) => (events, through),
            Stretch::Gone(oldest) if after == start => return Ok(Page::Gone(oldest)),
            Stretch::Ahead(newest) if after == start => return Ok(Page::Ahead(Ahead { position: start, newest })),
            // The next request reports the error.
            Stretch::Gone(_) | Stretch::Ahead(_) => break,
        };
        let at_end = through == after;
        after = through;
        for event in events.into_iter().filter(|event| filter.passes(event.exchange, &event.routing_key, &event.cc)) {
            if found.len() == limit {
                after = found.last().map_or(start, |last: &Event| last.position);
                break;
            }
            found.push(event);
        }
        if at_end || found.len() == limit || filter.is_open() || after - start >= SCANNED_MAX {
            break;
        }
    }
    Ok(Page::Events(found, after))
}
