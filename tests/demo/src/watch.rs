//! Watches the tasks until all are resolved, prints progress, and kills workers meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::io::{IsTerminal, Write};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use tenure_api::ids::{RunId, TaskId};
use tenure_client::{Client, State, TaskStatus};
use tokio::time::Instant;

use crate::plan::Planned;
use crate::processes::{CLAIM_TIMEOUT, Workers};
use crate::{CONCURRENCY, Result};

const TICK: Duration = Duration::from_millis(500);
const PLAIN_PROGRESS: Duration = Duration::from_secs(5);
/// Percentages of resolved tasks at which workers are killed.
const KILL_AT: [usize; 2] = [15, 50];
const KILLED_TOGETHER: usize = 2;
/// Time after a kill for a report that was already sent to arrive.
const SETTLE: Duration = Duration::from_millis(500);

#[derive(PartialEq, Eq)]
pub struct ClaimedRun {
    pub task_id: TaskId,
    pub run_id: RunId,
    pub worker: String,
}

pub struct Observations {
    pub lost: Vec<ClaimedRun>,
    pub kills: usize,
    pub took: Duration,
}

type Statuses = HashMap<TaskId, TaskStatus>;

pub async fn watch(
    client: &Client,
    tasks: &[Planned],
    workers: &mut Workers,
    wait_timeout: Duration,
) -> Result<Observations> {
    let start = Instant::now();
    let mut seen = Observations { lost: Vec::new(), kills: 0, took: Duration::ZERO };
    let mut statuses = Statuses::new();
    let mut progress = Progress::new(tasks.len());
    let mut rounds = KILL_AT.iter().peekable();
    loop {
        refresh(client, tasks, &mut statuses).await?;
        let resolved = statuses.values().filter(|status| status.state.is_resolved()).count();
        seen.took = start.elapsed();
        progress.show(&statuses, seen.took);
        if resolved == tasks.len() || seen.took > wait_timeout {
            progress.end();
            return Ok(seen);
        }
        if let Some(problem) = workers.find_ended()? {
            return Err(problem.into());
        }
        if rounds.peek().is_some_and(|share| resolved * 100 >= *share * tasks.len()) {
            let victims = busiest(&statuses, &seen.lost);
            if victims.len() == KILLED_TOGETHER {
                rounds.next();
                seen.kills += victims.len();
                let mut held = kill(client, tasks, workers, &victims, &mut statuses).await?;
                held.retain(|held| !seen.lost.contains(held));
                progress.say(&format!(
                    "Killed {} with SIGKILL while they held {} tasks, and started them again. That ends their sessions, and others get \
                     the tasks; those of --plane poll have none, and their claims run out {CLAIM_TIMEOUT} after they were made.",
                    victims.join(" and "),
                    held.len()
                ));
                seen.lost.extend(held);
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

async fn refresh(client: &Client, tasks: &[Planned], statuses: &mut Statuses) -> Result<()> {
    let unresolved = |task: &&Planned| !statuses.get(&task.id).is_some_and(|status| status.state.is_resolved());
    let open: Vec<TaskId> = tasks.iter().filter(unresolved).map(|task| task.id).collect();
    let read = read_all(client, open).await?;
    statuses.extend(read.into_iter().map(|status| (status.task_id, status)));
    Ok(())
}

pub async fn read_all(client: &Client, ids: Vec<TaskId>) -> Result<Vec<TaskStatus>> {
    let read = futures_util::stream::iter(ids).map(|id| client.status(id)).buffer_unordered(CONCURRENCY);
    Ok(read.try_collect().await?)
}

fn claim(status: &TaskStatus) -> Option<ClaimedRun> {
    let run = status.runs.last().filter(|run| run.state == State::Running)?;
    Some(ClaimedRun { task_id: status.task_id, run_id: run.run_id, worker: run.worker_id.clone()? })
}

/// Workers that hold the most tasks, without runs they held at their last kill.
fn busiest(statuses: &Statuses, lost: &[ClaimedRun]) -> Vec<String> {
    let mut claims: BTreeMap<String, usize> = BTreeMap::new();
    for held in statuses.values().filter_map(claim).filter(|held| !lost.contains(held)) {
        *claims.entry(held.worker).or_default() += 1;
    }
    let mut by_count: Vec<(String, usize)> = claims.into_iter().collect();
    by_count.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    by_count.into_iter().take(KILLED_TOGETHER).map(|(worker, _)| worker).collect()
}

async fn kill(
    client: &Client,
    tasks: &[Planned],
    workers: &mut Workers,
    victims: &[String],
    statuses: &mut Statuses,
) -> Result<Vec<ClaimedRun>> {
    let mut planes = Vec::new();
    for victim in victims {
        planes.push(workers.kill(victim).await?);
    }
    tokio::time::sleep(SETTLE).await;
    refresh(client, tasks, statuses).await?;
    let held = statuses.values().filter_map(claim).filter(|held| victims.contains(&held.worker)).collect();
    victims.iter().zip(planes).try_for_each(|(victim, plane)| workers.start(victim, plane))?;
    Ok(held)
}

struct Progress {
    tasks: usize,
    terminal: bool,
    printed: Option<Duration>,
}

impl Progress {
    fn new(tasks: usize) -> Self {
        Self { tasks, terminal: std::io::stdout().is_terminal(), printed: None }
    }

    fn show(&mut self, statuses: &Statuses, elapsed: Duration) {
        let count = |state| statuses.values().filter(|status| status.state == state).count();
        let [pending, running] = [State::Pending, State::Running].map(count);
        let [completed, failed, exception] = [State::Completed, State::Failed, State::Exception].map(count);
        let line = format!(
            "{:3} s {}/{}: {completed} completed {failed} failed {exception} exception, {running} running {pending} pending",
            elapsed.as_secs(),
            completed + failed + exception,
            self.tasks,
        );
        if self.terminal {
            let mut out = std::io::stdout();
            // A failed write of progress is no reason to stop.
            let _shown = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
        } else if self.printed.is_none_or(|last| elapsed >= last + PLAIN_PROGRESS) {
            self.printed = Some(elapsed);
            say!("{line}");
        }
    }

    fn say(&self, line: &str) {
        say!("{}{line}", if self.terminal { "\r\x1b[K" } else { "" });
    }

    fn end(&self) {
        if self.terminal {
            say!("");
        }
    }
}

pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
