//! Compares servers by running modes on each in turn, in several rounds, and prints medians and
//! ratios.
//!
//! All servers run, each with its own PostgreSQL, and only one is called at a time. Each round
//! starts with another server. A ratio is the median of the rounds' ratios, because a disturbance
//! of one measurement also affects its neighbours.

mod contestant;
mod parked;
mod row;
mod summary;

use std::time::Duration;

use clap::Parser;
use tokio::task::LocalSet;

use self::contestant::Contestant;
pub use self::row::RowName;
use self::row::{Column, Condition, Row};
use self::summary::{Round, Summary};
use super::database::Probe;
use super::{BenchError, measure_mode};

/// Commits after a pause, measured before and after a round.
const PAUSED_COMMITS: usize = 50;
/// Length of such a pause: the least head start of a worker in mode pickup.
const PAUSE: Duration = Duration::from_millis(10);
const COMMITS: usize = 100;

/// Runs modes on several servers in turn and prints medians and ratios.
#[derive(Debug, Parser)]
#[command(name = "tenure-bench ratio", version)]
pub struct Settings {
    /// A file that describes a running server: name, credentials, serverPid, pgPid, databaseUrl.
    /// The first server named `tenure` is compared with all others.
    #[arg(long = "contestant", required = true)]
    pub contestants: Vec<std::path::PathBuf>,
    /// Number of measurements of each server.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Seconds to run before each measurement.
    #[arg(long, default_value_t = 1)]
    pub warmup: u64,
    /// Numbers of connections for the life cycle.
    // The last value wins: scripts/bench rabbitmq puts its own before the caller's. The same holds for
    // the rows.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,256", overrides_with = "connections")]
    pub connections: Vec<usize>,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lifecycle", overrides_with = "rows")]
    pub rows: Vec<RowName>,
    /// Number of workers that wait for work in the row `parked`.
    #[arg(long, default_value_t = 5000)]
    pub parked: usize,
    /// Number of pending tasks in the row `pending`.
    #[arg(long, default_value_t = 1_000_000)]
    pub pending: u64,
    /// Number of connections in the row `overload`. With fewer than the server lets wait, it sheds
    /// none.
    #[arg(long, default_value_t = 8000)]
    pub overload_connections: usize,
}

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

async fn measure_row(settings: &Settings, row: &Row<'_>) -> Result<String, BenchError> {
    let rounds = settings.rounds.max(1);
    let mut summary = Summary::new(row.columns.iter().map(|column| column.name.clone()).collect());
    let (last, first): (Vec<usize>, Vec<usize>) =
        (0..row.columns.len()).partition(|column| row.columns[*column].variant.condition.comes_last());
    for together in [first, last] {
        let mut snapshots = Vec::new();
        for column in &together {
            snapshots.extend(prepare(&row.columns[*column]).await?);
        }
        for round in 0..rounds {
            for turn in 0..together.len() {
                let column = together[(round + turn) % together.len()];
                eprintln!("{}, round {}: {}", row.title, round + 1, row.columns[column].name);
                let plain = row.ratios.iter().find(|(over, _)| *over == column).map(|(_, under)| *under);
                let reached = plain.and_then(|plain| summary.rate(plain));
                summary.add(column, measure_column(&row.columns[column], reached).await?);
            }
        }
    }
    let title = format!("{}; medians of {rounds} rounds of {} s", row.title, settings.seconds);
    Ok(summary.render(&title, &row.ratios))
}

/// Prepares a column before its first round; returns the session that holds its snapshot.
async fn prepare(column: &Column<'_>) -> Result<Option<Probe>, BenchError> {
    match &column.variant.condition {
        Condition::SnapshotHeld => {
            let mut probe = Probe::connect(&column.contestant.database_url).await?;
            probe.hold_snapshot().await?;
            Ok(Some(probe))
        }
        Condition::Filled { queue, tasks } => {
            eprintln!("{}: filling a queue with {tasks} tasks", column.name);
            // Every mode fills the queue first; this one adds the least.
            let words = ["status", "--connections", "1", "--seconds", "1", "--warmup", "0", "--task-queue"];
            let mut arguments: Vec<String> = words.into_iter().map(str::to_owned).collect();
            arguments.extend([queue.clone(), "--prefill".to_owned(), tasks.to_string()]);
            measure_mode(&column.contestant.settings(&arguments)?).await?;
            Ok(None)
        }
        Condition::Quiet | Condition::Parked(_) | Condition::TwiceTheRate | Condition::BesideCommits => Ok(None),
    }
}

/// Measures one round of a column. `reached` is the rate of the plain variant on the same server.
async fn measure_column(column: &Column<'_>, reached: Option<f64>) -> Result<Round, BenchError> {
    let mut arguments = column.variant.arguments.clone();
    let mut parked = None;
    let mut commits = Commits::default();
    match column.variant.condition {
        Condition::Quiet | Condition::Filled { .. } | Condition::SnapshotHeld => {}
        Condition::Parked(workers) => parked = Some(parked::park(column.contestant, workers).await?),
        Condition::TwiceTheRate => {
            let rate = 2.0 * reached.unwrap_or_default();
            arguments.extend(["--rate".to_owned(), format!("{rate:.0}")]);
        }
        Condition::BesideCommits => time_commits(column.contestant, &mut commits).await?,
    }
    let mut round = Round::of(measure_mode(&column.contestant.settings(&arguments)?).await?);
    drop(parked);
    if column.variant.condition == Condition::BesideCommits {
        time_commits(column.contestant, &mut commits).await?;
        round.compare_with_commits(&commits);
    }
    Ok(round)
}

#[derive(Debug, Default)]
struct Commits {
    /// Consecutive commits, with session and processor awake.
    at_once: Vec<f64>,
    /// Commits after a pause with an idle database, as before a create for a waiting worker.
    after_pause: Vec<f64>,
}

async fn time_commits(contestant: &Contestant, commits: &mut Commits) -> Result<(), BenchError> {
    let mut probe = Probe::connect(&contestant.database_url).await?;
    for _ in 0..COMMITS {
        commits.at_once.push(probe.commit_once().await?.as_secs_f64() * 1000.0);
    }
    for _ in 0..PAUSED_COMMITS {
        tokio::time::sleep(PAUSE).await;
        commits.after_pause.push(probe.commit_once().await?.as_secs_f64() * 1000.0);
    }
    Ok(())
}
