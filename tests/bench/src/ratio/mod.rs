//! Compares servers by running modes on each in turn, round after round, and prints medians and ratios.
//!
//! The servers are all running, each with a PostgreSQL of its own, and only one is called at a time. In every round another
//! one is first. A ratio is the median of the rounds' ratios, because what disturbs a round disturbs its neighbours too.

mod contestant;
mod row;
mod summary;

use clap::{Parser, ValueEnum};
use tokio::task::LocalSet;

use self::contestant::Contestant;
use self::row::{Column, Row};
use self::summary::{Round, Summary};
use super::{BenchError, measure_mode};

/// Runs modes on several servers in turn and prints medians and ratios.
#[derive(Debug, Parser)]
#[command(name = "tenure-bench ratio", version)]
pub struct Settings {
    /// A file that describes a running server: name, credentials, serverPid, pgPid, databaseUrl. The first whose name is
    /// `tenure` is compared with all others.
    #[arg(long = "contestant", required = true)]
    pub contestants: Vec<std::path::PathBuf>,
    /// How often each is measured.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// How long each time.
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// How long to run before that, each time.
    #[arg(long, default_value_t = 1)]
    pub warmup: u64,
    /// With how many connections the life cycle is measured.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,256")]
    pub connections: Vec<usize>,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lifecycle")]
    pub rows: Vec<RowName>,
}

/// What can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RowName {
    /// Create, claim one, report: on each server, with each number of connections.
    Lifecycle,
}

/// Measures and prints each row when it is done.
///
/// # Errors
///
/// If a server cannot be measured.
pub async fn run(settings: &Settings) -> Result<(), BenchError> {
    let mut contestants = Vec::with_capacity(settings.contestants.len());
    for path in &settings.contestants {
        contestants.push(Contestant::read(path)?);
    }
    LocalSet::new()
        .run_until(async {
            for name in &settings.rows {
                for row in row::rows(*name, settings, &contestants) {
                    println!("{}", measure_row(settings, &row).await?);
                }
            }
            Ok(())
        })
        .await
}

/// All rounds of a row, as text.
async fn measure_row(settings: &Settings, row: &Row<'_>) -> Result<String, BenchError> {
    let mut summary = Summary::new(row.columns.iter().map(|column| column.name.clone()).collect());
    for round in 0..settings.rounds.max(1) {
        for turn in 0..row.columns.len() {
            let column = (round + turn) % row.columns.len();
            eprintln!("{}, round {}: {}", row.title, round + 1, row.columns[column].name);
            summary.add(column, measure_column(&row.columns[column]).await?);
        }
    }
    let title = format!("{}; medians of {} rounds of {} s", row.title, settings.rounds.max(1), settings.seconds);
    Ok(summary.render(&title, &row.ratios))
}

async fn measure_column(column: &Column<'_>) -> Result<Round, BenchError> {
    Ok(Round::of(measure_mode(&column.contestant.settings(&column.arguments)?).await?))
}
