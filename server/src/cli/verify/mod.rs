//! `tenure verify`: verifies that a deployment behaves as documented.
//!
//! `tenure verify delivery` plays every cell of the table in docs/delivery.md against a live
//! server, over HTTP only, and compares the observations with [`CELLS`], from which the table is
//! generated.
//!
//! | file | contents |
//! |---|---|
//! | `calls` | the calls, as one client |
//! | `part` | a case: a cell, and the cause that takes the run from its worker |
//! | `stage` | a case's queue and task |
//! | `play` | a case's workers, which exit, accept nothing or are slow |
//! | `observations` | the observations |
//! | `judge` | differences from the documentation |
//! | `report` | output |

mod calls;
mod judge;
mod observations;
mod part;
mod play;
mod report;
mod stage;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures_util::future::{join_all, try_join_all};
use tenure_domain::policy::cells::{CELLS, Cell};

use super::http::{CommandError, Server};
use super::print::complain;
use super::signals;
use calls::Calls;
use judge::judge;
use observations::{Observations, Resolution};
use part::Part;
use play::play;
use report::Judged;
use stage::{PROVISIONER, Stage};

#[derive(Debug, Subcommand)]
pub enum VerifyCommand {
    /// Play the published table of deliveries against the server, for half a minute; ends with 1 on
    /// any difference
    Delivery(DeliveryArgs),
}

#[derive(Debug, Args)]
pub struct DeliveryArgs {
    /// Play only these cells, such as exit/at-least/0 [default: all]
    #[arg(long = "cell", value_name = "CELL", num_args = 1.., value_parser = parse_cell)]
    pub cells: Vec<Cell>,
    /// Keep the policies and tasks in the end, for inspection
    #[arg(long)]
    pub keep: bool,
}

fn parse_cell(name: &str) -> Result<Cell, String> {
    let all = || CELLS.map(|cell| cell.name()).join(", ");
    CELLS.into_iter().find(|cell| cell.name() == name).ok_or_else(|| format!("choose one of {}", all()))
}

/// After an error, nothing is known of the server.
pub async fn run(server: &Server, command: VerifyCommand) -> Result<ExitCode, CommandError> {
    let VerifyCommand::Delivery(DeliveryArgs { cells, keep }) = command;
    let asked = signals::listen(Duration::ZERO).map_err(|error| CommandError::no_signals(&error))?;
    let played = Part::all().filter(|part| cells.is_empty() || cells.contains(&part.cell));
    let stages: Vec<Stage> = played.map(Stage::new).collect();
    let calls = Calls::new(server);
    let observed = tokio::select! {
        observed = play_all(&calls, &stages) => observed,
        () = asked.stop.cancelled() => {
            Err(CommandError::Interrupted("interrupted: no verdict".to_owned(), asked.exit_code()))
        },
    };
    let cleaning = clean_up(&calls, &stages);
    let cleaned = if keep { Some(Ok(())) } else { asked.stop_at_once.run_until_cancelled(cleaning).await };
    let Some(cleaned) = cleaned else { return Ok(asked.exit_code()) };
    let (observed, cleaned) = match (observed, cleaned) {
        (Err(error), Err(left)) => return Err(with(error, &left)),
        (observed, cleaned) => (observed?, cleaned),
    };
    let judged: Vec<Judged<'_>> =
        stages.iter().zip(observed).map(|(stage, observed)| judged(stage, observed)).collect();
    server.print(&report::answer(server.client.root_url(), &judged), |_| report::text(&judged))?;
    cleaned?;
    let as_published = judged.iter().all(Judged::is_as_published);
    Ok(if as_published { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn judged(stage: &Stage, observed: Observations) -> Judged<'_> {
    let differences = judge(&stage.part, &observed);
    Judged { part: &stage.part, queue: &stage.queue, task: stage.task, observed, differences }
}

async fn play_all(calls: &Calls<'_>, stages: &[Stage]) -> Result<Vec<Observations>, CommandError> {
    let start = calls.log_end().await?;
    for stage in stages {
        stage.set_up(calls).await?;
    }
    complain(&format!(
        "{} tasks are lost, given back or worked on slowly, all at once; this takes about 20 seconds",
        stages.len()
    ));
    let mut all = try_join_all(stages.iter().map(|stage| play(stage, calls))).await?;
    let log = calls.resolutions(PROVISIONER, start, calls.log_end().await?).await?;
    for (stage, observed) in stages.iter().zip(&mut all) {
        let of_task = log.iter().filter(|(task, _)| *task == stage.task);
        observed.resolutions = of_task.map(|(_, end)| end.clone()).collect::<Vec<Resolution>>();
    }
    Ok(all)
}

/// Continues if a part fails.
async fn clean_up(calls: &Calls<'_>, stages: &[Stage]) -> Result<(), CommandError> {
    join_all(stages.iter().map(|stage| stage.clean_up(calls))).await.into_iter().collect()
}

/// Adds that clean-up failed too.
fn with(error: CommandError, left: &CommandError) -> CommandError {
    let more = format!("; policies and tasks in queues {PROVISIONER}/* are left: {left}");
    match error {
        CommandError::Usage(message) => CommandError::Usage(message + &more),
        CommandError::Refused(message) => CommandError::Refused(message + &more),
        CommandError::Interrupted(message, code) => CommandError::Interrupted(message + &more, code),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Tenure {
        #[command(subcommand)]
        verify: VerifyCommand,
    }

    fn parse(words: &[&str]) -> Result<DeliveryArgs, String> {
        let parsed = Tenure::try_parse_from(["verify", "delivery"].iter().chain(words));
        let VerifyCommand::Delivery(args) = parsed.map_err(|error| error.to_string())?.verify;
        Ok(args)
    }

    #[test]
    fn cells_have_the_names_of_the_table() {
        assert!(parse(&[]).unwrap().cells.is_empty());
        for cell in CELLS {
            assert_eq!(parse(&["--cell", &cell.name()]).unwrap().cells, [cell]);
        }
        let two = parse(&["--cell", "exit/at-least/0", "slow/at-most/n", "--keep"]).unwrap();
        assert_eq!((two.cells.as_slice(), two.keep), (&[CELLS[0], CELLS[11]][..], true));
        for wrong in ["asleep/at-least/0", "exit/at-least", "exit"] {
            let refused = parse(&["--cell", wrong]).unwrap_err();
            assert!(refused.contains("choose one of exit/at-least/0, exit/at-least/n, "), "{refused}");
        }
    }
}
