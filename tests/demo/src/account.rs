//! The final account: the API's answer about each task, the task's output, and whether both are
//! correct.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tenure_api::ids::{TaskId, TaskQueueId};
use tenure_client::{Client, QueueCounts, State, TaskStatus};
use tokio::time::Instant;

use crate::plan::{CountedFile, Planned};
use crate::watch::{Observations, read_all};
use crate::{Result, table};

const COUNTS_TIMEOUT: Duration = Duration::from_secs(30);
const ROWS_MAX: usize = 12;
const PROBLEMS_MAX: usize = 20;
const TASKS_PER_WORKER: usize = 15;

struct Counted {
    sha256: String,
    lines: u64,
    words: u64,
    bytes: u64,
    packed: u64,
}

#[derive(Default)]
struct Kind {
    files: u64,
    lines: u64,
    words: u64,
    bytes: u64,
    ratios: f64,
}

pub struct Account {
    took: Duration,
    tasks: usize,
    kills: usize,
    held: usize,
    states: BTreeMap<String, usize>,
    counts: QueueCounts,
    retried: Vec<Vec<String>>,
    shares: BTreeMap<(String, &'static str), usize>,
    kinds: BTreeMap<String, Kind>,
    checked: usize,
    problems: Vec<String>,
}

pub async fn account(
    client: &Client,
    queue: &TaskQueueId,
    tasks: &[Planned],
    planes: BTreeMap<String, &'static str>,
    seen: &Observations,
) -> Result<Account> {
    let read = read_all(client, tasks.iter().map(|task| task.id).collect()).await?;
    let statuses: HashMap<TaskId, TaskStatus> = read.into_iter().map(|status| (status.task_id, status)).collect();
    let mut account = Account {
        took: seen.took,
        tasks: tasks.len(),
        kills: seen.kills,
        held: seen.lost.len(),
        states: BTreeMap::new(),
        counts: counts_at_rest(client, queue).await?,
        retried: Vec::new(),
        shares: planes.into_iter().map(|worker| (worker, 0)).collect(),
        kinds: BTreeMap::new(),
        checked: 0,
        problems: Vec::new(),
    };
    if account.counts != (QueueCounts { pending_tasks: 0, claimed_tasks: 0 }) {
        account.problems.push(format!("the queue still counts {:?}", account.counts));
    }
    for task in tasks {
        match statuses.get(&task.id) {
            Some(status) => account.add(task, status),
            None => account.problems.push(format!("task {} ({}) is not known to the server", task.id, task.name)),
        }
    }
    account.check_held(&statuses, seen);
    account.share(&statuses);
    Ok(account)
}

async fn counts_at_rest(client: &Client, queue: &TaskQueueId) -> Result<QueueCounts> {
    let deadline = Instant::now() + COUNTS_TIMEOUT;
    loop {
        let counts = client.counts(queue).await?;
        if counts.pending_tasks + counts.claimed_tasks == 0 || Instant::now() > deadline {
            return Ok(counts);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

impl Account {
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, task: &Planned, status: &TaskStatus) {
        let reason = status.runs.last().and_then(|run| run.reason_resolved.as_deref()).unwrap_or("unresolved");
        let state = format!("{:?}", status.state).to_lowercase();
        let label = if state == reason { state } else { format!("{state} ({reason})") };
        if status.state != task.expected.state || reason != task.expected.reason {
            self.problems
                .push(format!("task {} ({}) is {label}, which should be {}", task.id, task.name, task.expected.reason));
        }
        *self.states.entry(label).or_default() += 1;
        self.check_retries(task, status);
        if let Some(file) = &task.file
            && status.state == State::Completed
        {
            match check_result(file) {
                Ok(counted) => self.count(&file.source, &counted),
                Err(problem) => self.problems.push(format!("task {} ({}): {problem}", task.id, task.name)),
            }
        }
    }

    /// Every run but the last must have ended because its worker was gone.
    fn check_retries(&mut self, task: &Planned, status: &TaskStatus) {
        let Some((_, earlier)) = status.runs.split_last() else { return };
        if earlier.is_empty() {
            return;
        }
        let one = |run: &tenure_client::RunStatus| {
            let reason = run.reason_resolved.as_deref().unwrap_or("unresolved");
            format!("{} {reason} on {}", run.run_id, run.worker_id.as_deref().unwrap_or("?"))
        };
        let history: Vec<String> = status.runs.iter().map(one).collect();
        self.retried.push(vec![task.id.to_string(), history.join(", ")]);
        for run in earlier {
            if !matches!(run.reason_resolved.as_deref(), Some("claim-expired" | "worker-shutdown")) {
                self.problems.push(format!("task {} ({}) was tried again after {}", task.id, task.name, one(run)));
            }
        }
    }

    /// A killed worker's runs must have ended with its session or lease: no process was left to
    /// report them.
    fn check_held(&mut self, statuses: &HashMap<TaskId, TaskStatus>, seen: &Observations) {
        for held in &seen.lost {
            let runs = statuses.get(&held.task_id).map(|status| status.runs.as_slice()).unwrap_or_default();
            let run = runs.iter().find(|run| run.run_id == held.run_id);
            let reason = run.and_then(|run| run.reason_resolved.as_deref()).unwrap_or("unresolved");
            if !matches!(reason, "claim-expired" | "worker-shutdown") {
                let (task, run, worker) = (held.task_id, held.run_id, &held.worker);
                self.problems
                    .push(format!("run {run} of task {task} was held by {worker} when killed, but is {reason}"));
            }
        }
    }

    /// Every worker, on either plane, must have had some runs.
    fn share(&mut self, statuses: &HashMap<TaskId, TaskStatus>) {
        let mut runs: BTreeMap<&str, usize> = BTreeMap::new();
        for worker in statuses.values().flat_map(|status| &status.runs).filter_map(|run| run.worker_id.as_deref()) {
            *runs.entry(worker).or_default() += 1;
        }
        let enough = self.tasks >= self.shares.len() * TASKS_PER_WORKER;
        for ((worker, plane), count) in &mut self.shares {
            *count = runs.get(worker.as_str()).copied().unwrap_or_default();
            if enough && *count == 0 {
                self.problems.push(format!("{worker} (--plane {plane}) had no task"));
            }
        }
    }

    fn count(&mut self, source: &Path, counted: &Counted) {
        self.checked += 1;
        let extension = source.extension().and_then(|text| text.to_str());
        let kind = self.kinds.entry(extension.unwrap_or("(none)").to_owned()).or_default();
        kind.files += 1;
        kind.lines += counted.lines;
        kind.words += counted.words;
        kind.bytes += counted.bytes;
        kind.ratios += ratio(counted.bytes, counted.packed);
    }

    pub fn print(&self) {
        let states: Vec<_> = self.states.iter().map(|(state, count)| vec![state.clone(), count.to_string()]).collect();
        table::print("Tasks by state, from the API", &["state", "tasks"], &states);
        say!("  the queue: {} pending, {} claimed", self.counts.pending_tasks, self.counts.claimed_tasks);
        let share = |((worker, plane), runs): (&(String, &str), &usize)| {
            vec![worker.clone(), (*plane).to_owned(), runs.to_string()]
        };
        let shares: Vec<_> = self.shares.iter().map(share).collect();
        table::print("Runs by worker", &["worker", "plane", "runs"], &shares);
        say!("\nWorkers killed: {}; they held {} runs.", self.kills, self.held);
        let shown = &self.retried[..self.retried.len().min(ROWS_MAX)];
        let more =
            if shown.len() < self.retried.len() { format!(", {} of them shown", shown.len()) } else { String::new() };
        let title = format!("Tasks that took more than one run: {}{more}", self.retried.len());
        table::print(&title, &["task", "runs"], shown);
        self.print_kinds();
        say!("\nChecksums recomputed outside the tasks: {} files, all compared.", self.checked);
        for problem in self.problems.iter().take(PROBLEMS_MAX) {
            say!("PROBLEM: {problem}");
        }
        let verdict = match self.problems.len() {
            0 => "everything is accounted for".to_owned(),
            count => format!("{count} problems"),
        };
        say!("{} tasks in {:.1} s: {verdict}.", self.tasks, self.took.as_secs_f64());
    }

    fn print_kinds(&self) {
        let mut kinds: Vec<(&str, &Kind)> = self.kinds.iter().map(|(name, kind)| (name.as_str(), kind)).collect();
        kinds.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.files));
        let mut rest = Kind::default();
        for (_, kind) in kinds.iter().skip(ROWS_MAX) {
            rest.files += kind.files;
            rest.lines += kind.lines;
            rest.words += kind.words;
            rest.bytes += kind.bytes;
            rest.ratios += kind.ratios;
        }
        kinds.truncate(ROWS_MAX);
        if rest.files > 0 {
            kinds.push(("others", &rest));
        }
        let row = |(name, kind): &(&str, &Kind)| {
            let numbers = [kind.files, kind.lines, kind.words, kind.bytes].map(|number| number.to_string());
            let mean = format!("{:.2}", kind.ratios / kind.files as f64);
            [vec![(*name).to_owned()], numbers.to_vec(), vec![mean]].concat()
        };
        let rows: Vec<_> = kinds.iter().map(row).collect();
        let head = ["type", "files", "lines", "words", "bytes", "mean compression"];
        table::print("Results by type of file, from what the tasks wrote", &head, &rows);
    }
}

fn ratio(bytes: u64, packed: u64) -> f64 {
    bytes as f64 / packed.max(1) as f64
}

fn check_result(file: &CountedFile) -> std::result::Result<Counted, String> {
    let text = std::fs::read_to_string(&file.result).map_err(|e| format!("its result cannot be read: {e}"))?;
    let counted = parse_result(&text).ok_or_else(|| format!("its result is not what was asked for: {text:?}"))?;
    let content = std::fs::read(&file.source).map_err(|e| format!("its file cannot be read any more: {e}"))?;
    let sha256: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    if counted.sha256 != sha256 {
        return Err(format!("it found the checksum {}, but the file has {sha256}", counted.sha256));
    }
    let lines = content.iter().filter(|byte| **byte == b'\n').count();
    if (u64::try_from(lines), u64::try_from(content.len())) != (Ok(counted.lines), Ok(counted.bytes)) {
        return Err(format!("it counted {} lines and {} bytes", counted.lines, counted.bytes));
    }
    Ok(counted)
}

fn parse_result(text: &str) -> Option<Counted> {
    let mut words = text.split_whitespace();
    let sha256 = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    let counted = Counted { sha256, lines: number()?, words: number()?, bytes: number()?, packed: number()? };
    words.next().is_none().then_some(counted)
}
