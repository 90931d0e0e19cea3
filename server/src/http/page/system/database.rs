//! The database and the artifact store.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use sqlx::PgConnection;

use crate::http::page::layout::{self, Cells, section, table};
use crate::http::page::state::Site;
use crate::http::page::text;
use tenure_store::cluster;
use tenure_store::page::{self, Connections, Program, TableSize};
use tenure_store::replication::{self, Replication};

const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];

pub(super) struct Database {
    /// In bytes.
    pub size: i64,
    pub connections: Connections,
    replication: Replication,
    /// None if not read in time.
    tables: Option<Vec<TableSize>>,
}

impl Database {
    pub(super) async fn read(conn: &mut PgConnection) -> Result<Self, sqlx::Error> {
        Ok(Self {
            size: cluster::get_size(conn).await?,
            connections: page::get_connections(conn).await?,
            replication: replication::get(conn).await?,
            tables: page::list_tables(conn).await?,
        })
    }
}

pub(super) fn sections(app: &Site, database: &Database, now: DateTime<Utc>) -> Markup {
    html! {
        (facts(app, database))
        div.columns {
            (tables_section(database.tables.as_deref(), now))
            (programs_section(&database.connections))
        }
    }
}

fn facts(app: &Site, database: &Database) -> Markup {
    let Replication { standbys, synchronous_names, synchronous_commit } = &database.replication;
    let (pool, skew) = (&app.engine.pool, app.engine.skew.millis());
    let busy = usize::try_from(pool.size()).unwrap_or_default().saturating_sub(pool.num_idle());
    let store = app.engine.reports.store();
    let body = html! {
        dl.facts {
            div { dt { "PostgreSQL" } dd { (database.connections.version) } }
            div { dt { "Standbys" } dd {
                @if standbys.is_empty() { "none" } @else { (standbys.join(", ")) }
            } }
            div { dt { "Commits wait for" } dd {
                code { "synchronous_commit" } " " (synchronous_commit)
                @if !synchronous_names.is_empty() { ", " code { (synchronous_names) } }
            } }
            div { dt { "Clock of the database" } dd {
                @if skew == 0 { "as this server's" }
                @else { (skew.unsigned_abs()) " ms " @if skew > 0 { "ahead" } @else { "behind" } }
            } }
            div { dt { "Requests in the database" } dd { (busy) " of " (pool.options().get_max_connections()) " connections" } }
            div { dt { "Artifact store" } dd { @match store {
                Some(check) => {
                    (layout::state(if check.works { "works" } else { "failing" })) " checked " (text::age(check.at.elapsed())) " ago"
                }
                None => { "not checked yet" }
            } } }
        }
        @for warning in database.replication.find_warnings() {
            p.warning { code { (warning.setting) } " is " code { (warning.value) } ": " (warning.advice) "." }
        }
    };
    section("Database and artifacts", &html! {}, &body)
}

fn tables_section(tables: Option<&[TableSize]>, now: DateTime<Utc>) -> Markup {
    let title = "Largest tables";
    let Some(tables) = tables else { return section(title, &html! {}, &layout::unread()) };
    let cells = |row: &TableSize| -> Cells {
        vec![
            ("Table", html! { code { (row.name) } }),
            (">Size", html! { (bytes(row.bytes)) }),
            (">Rows", layout::number(row.live)),
            (">Dead rows", layout::number(row.dead)),
            (">Vacuumed", row.vacuumed.map_or_else(layout::none, |at| layout::time(at, now))),
        ]
    };
    let rows: Vec<_> = tables.iter().map(cells).collect();
    section(title, &html! { "with indexes; numbers of rows are estimates" }, &table(&rows))
}

fn programs_section(connections: &Connections) -> Markup {
    let cells = |program: &Program| -> Cells {
        let name = html! {
            @if program.name.is_empty() { span.dim { "without a name" } } @else { code { (program.name) } }
            @if let Some(number) = migration(&program.name) { " " span.dim { "servers with migration " (number) } }
        };
        vec![("Program", name), (">Connections", layout::number(program.connections))]
    };
    let rows: Vec<_> = connections.programs.iter().map(cells).collect();
    section("Connections", &html! { "to this database, by application_name" }, &table(&rows))
}

/// Returns the last migration that a server knows, by its name for the database.
fn migration(program: &str) -> Option<u32> {
    program.strip_prefix("tenure/")?.split(' ').next()?.parse().ok()
}

/// As in "1.2 GB".
pub(super) fn bytes(number: i64) -> String {
    let (mut size, mut unit) = (number as f64, 0);
    while size >= 1_000.0 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1_000.0, unit + 1);
    }
    if unit == 0 { format!("{number} {}", UNITS[0]) } else { format!("{size:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let sizes = [0, 999, 1_000, 1_240_000, 2_000_000_000, 5_000_000_000_000_000].map(bytes);
        assert_eq!(sizes, ["0 B", "999 B", "1.0 kB", "1.2 MB", "2.0 GB", "5000.0 TB"]);
    }

    #[test]
    fn servers_are_known_by_their_migration() {
        let migrations = ["tenure/36", "tenure/36 hot", "tenure", "psql", "tenure/x"].map(migration);
        assert_eq!(migrations, [Some(36), Some(36), None, None, None]);
    }
}
