//! `/system`: is Tenure well? Servers, background passes, the database, and what depends on it.

mod database;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use tenure_api::problems::Problem;

use self::database::Database;
use super::audit;
use super::error::PageError;
use super::layout::{self, Cells, Page, section, table};
use super::overview::REFRESH;
use super::problems;
use super::state::Site;
use super::text;
use super::visit::Visit;
use tenure_engine::reports::{PassReports, Run};
use tenure_store::audit::Recorded;
use tenure_store::log_readers::Lag;
use tenure_store::schedulers::Scheduled;
use tenure_store::servers::{Servers, Stored};
use tenure_store::{clock, events, log_readers, page, schedulers, servers, session, settings};

/// As for the list of servers and the problems of the installation.
const REQUIRED: &str = "tenure:list-servers";
const SERVERS_SHOWN: usize = 50;
/// While an older transaction is open, dead rows cannot be removed and claims become slower.
const OLD_TRANSACTION: Duration = Duration::from_secs(60);

struct Facts {
    now: DateTime<Utc>,
    servers: Servers,
    scheduled: Vec<Scheduled>,
    database: Database,
    oldest_transaction: Duration,
    lags: Vec<Lag>,
    /// Age of the oldest event of the log.
    log_age: Duration,
    /// Time since the last backup.
    backup: Option<Duration>,
    changes: Vec<Recorded>,
}

/// `GET /system`
pub(super) async fn system(app: Site, visit: Arc<Visit>) -> Result<Page, PageError> {
    visit.authorize(REQUIRED)?;
    let facts = read(&app, &visit).await?;
    let found = problems::of_installation(&app, &visit);
    let body = html! {
        h1 { "System" }
        p.verdict { (verdict(found.as_deref(), &facts)) }
        (figures(&app, &facts))
        (problems::listed(&visit, found.as_deref().unwrap_or_default()))
        (servers_section(&app, &facts))
        (database::sections(&app, &facts.database, facts.now))
        (readers_section(&facts))
        (passes_section(&app, Instant::now()))
        @if !facts.changes.is_empty() {
            (section("Latest changes", &html! { code { "tenure audit" } " has all" }, &audit::table(&facts.changes, true, facts.now)))
        }
    };
    Ok(Page::new("System", Some(REFRESH), body))
}

async fn read(app: &Site, visit: &Visit) -> Result<Facts, PageError> {
    let mut conn = page::begin(&app.engine.pool).await?;
    let facts = Facts {
        now: clock::get_now(&mut conn).await?,
        servers: servers::list(&mut conn).await?,
        scheduled: schedulers::list(&mut conn).await?,
        database: Database::read(&mut conn).await?,
        oldest_transaction: session::get_oldest_transaction(&mut conn).await?,
        lags: log_readers::list_lags(&mut conn).await?,
        log_age: seconds(events::get_oldest_age(&mut conn, app.engine.sequencer.begins()).await?),
        backup: settings::find_backup_age(&mut *conn).await?.map(seconds),
        changes: audit::newest(&mut conn, visit).await?,
    };
    conn.commit().await?;
    Ok(facts)
}

/// Of a backup in the future, by a clock that was set back, none.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn verdict(found: Option<&[Problem]>, facts: &Facts) -> Markup {
    let up = facts.servers.servers.iter().filter(|stored| is_up(stored, &facts.servers)).count();
    html! {
        @match found.map(<[Problem]>::len) {
            None => { "The facts about servers and database have not been read lately. The next page may have them." }
            Some(0) => {
                "Tenure is well: " (up) @if up == 1 { " server is up" } @else { " servers are up" }
                ", and neither a server, a pass nor the database has a problem."
            }
            Some(1) => { "1 problem needs somebody." }
            Some(number) => { (number) " problems need somebody." }
        }
    }
}

/// Heartbeats are in real time, which `all` has.
fn is_up(stored: &Stored, all: &Servers) -> bool {
    stored.server.is_live(all.now)
}

fn figures(app: &Site, facts: &Facts) -> Markup {
    let Facts { servers, database, oldest_transaction, backup, .. } = facts;
    let up = servers.servers.iter().filter(|stored| is_up(stored, servers)).count();
    let free = app.free_disk.as_ref().and_then(|free| free());
    html! {
        dl.figures.six {
            div { dt { "Servers up" } dd { (up) " of " (servers.servers.len()) } }
            div { dt title="The oldest open transaction in the database, by any program" { "Oldest transaction" }
                dd.bad[*oldest_transaction >= OLD_TRANSACTION] { (text::age(*oldest_transaction)) } }
            div { dt title="To all databases of the cluster" { "Connections" }
                dd { (database.connections.open) " of " (database.connections.most) } }
            div { dt { "Database" } dd { (database::bytes(database.size)) } }
            div { dt title="Known for an embedded database only" { "Disk free" } dd { @match free {
                Some(free) => { (format!("{:.0} %", free * 100.0)) }
                None => (layout::none()),
            } } }
            div { dt { "Last backup" } dd { @match backup {
                Some(age) => { (text::age(*age)) " ago" }
                None => { span.zero title="tenure backup makes one" { "none" } }
            } } }
        }
    }
}

fn servers_section(app: &Site, facts: &Facts) -> Markup {
    let (all, own) = (&facts.servers, app.engine.schedulers.member().id);
    let cells = |stored: &&Stored| {
        let id = stored.server.id.to_string();
        let name =
            stored.name.as_deref().map_or_else(|| html! { code { (text::short(&id)) } }, |name| html! { (name) });
        let is_own = stored.server.id == own;
        let version = if is_own {
            html! { (env!("CARGO_PKG_VERSION")) " " span.dim { (text::short(env!("TENURE_COMMIT"))) } }
        } else {
            layout::none()
        };
        let queues = facts.scheduled.iter().filter(|one| one.active.server == Some(stored.server.id)).count();
        vec![
            ("Server", html! { span title=(id) { (name) } @if is_own { " " span.dim { "this one" } } }),
            ("State", layout::state(if is_up(stored, all) { "up" } else { "silent" })),
            ("Version", version),
            (">Queues scheduled", layout::number(i64::try_from(queues).unwrap_or(i64::MAX))),
            (">Weight", layout::number(stored.server.weight.into())),
            (">Started", layout::time(stored.started, all.now)),
            (">Last beat", layout::time(stored.server.beat, all.now)),
        ]
    };
    let mut servers: Vec<&Stored> = all.servers.iter().collect();
    // Silent servers need somebody.
    servers.sort_by_key(|stored| is_up(stored, all));
    let rows: Vec<_> = servers.iter().take(SERVERS_SHOWN).map(cells).collect();
    let vacant = facts.scheduled.iter().filter(|one| one.active.server.is_none()).count();
    let note = html! {
        "each shows its version on its own page"
        @if vacant > 0 { "; " span.bad { (vacant) } " queues without a scheduler" }
        @if servers.len() > SERVERS_SHOWN { "; " (SERVERS_SHOWN) " of " (servers.len()) }
    };
    section("Servers", &note, &table(&rows))
}

fn readers_section(facts: &Facts) -> Markup {
    let cells = |lag: &Lag| -> Cells {
        vec![("Reader", html! { code { (lag.reader) } }), (">Events behind", layout::number(lag.events))]
    };
    let rows: Vec<_> = facts.lags.iter().map(cells).collect();
    let note = html! { "the oldest event is " (text::age(facts.log_age)) " old" };
    section("Readers of the event log", &note, &table(&rows))
}

/// Runs of this server; each server has its own.
fn passes_section(app: &Site, now: Instant) -> Markup {
    let passes = app.engine.reports.passes();
    let cells = |(name, reports): (&&'static str, &PassReports)| -> Cells {
        let PassReports { last, failing } = reports;
        let ago = |at: Instant| text::age(now.saturating_duration_since(at));
        let state = match (failing, last) {
            (Some(since), _) => html! { (layout::state("failing")) " for " (ago(*since)) },
            (None, Some(_)) => layout::none(),
            (None, None) => html! { "not run yet" },
        };
        let of_run = |shown: fn(&Run) -> Markup| last.as_ref().map_or_else(layout::none, shown);
        vec![
            ("Pass", html! { code { (name) } }),
            ("State", state),
            (">Last run", last.as_ref().map_or_else(layout::none, |run| html! { (ago(run.ended)) " ago" })),
            (">Took", of_run(|run| html! { (text::age(run.took)) })),
            (">Found", of_run(|run| layout::number(i64::try_from(run.found).unwrap_or(i64::MAX)))),
            (">Done", of_run(|run| layout::number(i64::try_from(run.done).unwrap_or(i64::MAX)))),
        ]
    };
    let failing: Vec<Cells> = passes.iter().filter(|(_, reports)| reports.failing.is_some()).map(cells).collect();
    let all: Vec<Cells> = passes.iter().map(cells).collect();
    let note = html! { "of this server; docs/metrics.md says what each does" };
    let body = html! {
        @if failing.is_empty() { div.note { p { "No pass of this server fails." } } } @else { (table(&failing)) }
        details { summary { "All " (all.len()) " passes" } (table(&all)) }
    };
    section("Background passes", &note, &body)
}
