//! Waits for tasks and shows their progress on standard error: one line per task on a terminal,
//! rewritten on changes; elsewhere a new line per change.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{IsTerminal as _, Write as _};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;
use tenure_api::ids::{TaskGroupId, TaskId};

use super::outlook::Outlook;
use super::shown;
use super::stalled::Stalled;
use crate::cli::http::{CommandError, Server, field};
use crate::cli::print::complain;

const WAITS_MAX: usize = 100;
/// Duration of one request: the interval between intermediate states.
const LOOK_SECONDS: u32 = 3;
/// More tasks than this do not fit on a screen.
pub const LINES_MAX: usize = 20;

pub fn announce(server: &Server, group: TaskGroupId) {
    complain(&format!("group {group}  {}/group/{group}", server.client.root_url()));
}

/// Waits until all tasks are resolved or certain not to run. Prints why a task cannot run.
pub async fn wait(server: &Server, outlook: &Outlook<'_>, tasks: &[TaskId]) -> Result<Vec<Value>, CommandError> {
    let waiting = Waiting {
        server,
        outlook,
        screen: RefCell::new(Screen::new(tasks.len())),
        stalled: Stalled::new(),
        pending: RefCell::default(),
    };
    let waited: Vec<Waited> = stream::iter(tasks.iter().enumerate())
        .map(|(n, &task)| waiting.wait_for_one(n, task))
        .buffered(WAITS_MAX)
        .try_collect()
        .await?;
    for (task, waited) in tasks.iter().zip(&waited) {
        if let Some(never) = &waited.never {
            complain(&format!("{}: cannot run, {never}", outlook.short(*task)));
        }
    }
    Ok(waited.into_iter().map(|waited| waited.answer).collect())
}

struct Waited {
    answer: Value,
    /// Why the task can never run; none if it is resolved.
    never: Option<String>,
}

struct Waiting<'a> {
    server: &'a Server,
    outlook: &'a Outlook<'a>,
    screen: RefCell<Screen>,
    stalled: Stalled,
    /// Tasks that were pending when they were last read.
    pending: RefCell<HashSet<TaskId>>,
}

impl Waiting<'_> {
    async fn wait_for_one(&self, n: usize, task: TaskId) -> Result<Waited, CommandError> {
        let Self { server, outlook, .. } = *self;
        // The first request does not wait, so that a state is shown at once.
        let (mut seconds, patient) = (0, server.patient());
        loop {
            let client = if seconds == 0 { &server.client } else { &patient.client };
            let answer = client.wait_for_task(task, seconds).await.map_err(|error| server.error(&error))?;
            let resolved = answer["resolved"] == Value::Bool(true);
            let state = field(&answer, "/status/state");
            let never = if state == "unscheduled" { outlook.never(task).await? } else { None };
            let words = match &never {
                Some(_) => "cannot run".to_owned(),
                None => words(server, &answer, resolved),
            };
            self.screen.borrow_mut().show(n, format!("{}  {words}", outlook.label(task)));
            if resolved || never.is_some() {
                self.note_pending(task, false);
                self.stalled.note_progress();
                return Ok(Waited { answer, never });
            }
            self.note_pending(task, state == "pending");
            match state.as_str() {
                "running" => self.stalled.note_progress(),
                // A pending task tells more than tasks that wait for it.
                "unscheduled" if !self.pending.borrow().is_empty() => {}
                _ => self.explain(task).await,
            }
            seconds = LOOK_SECONDS;
        }
    }

    fn note_pending(&self, task: TaskId, is_pending: bool) {
        let mut pending = self.pending.borrow_mut();
        if is_pending {
            pending.insert(task);
        } else {
            pending.remove(&task);
        }
    }

    async fn explain(&self, task: TaskId) {
        if let Some(why) = self.stalled.explain(self.server, task).await {
            let line = format!("{} does not start: {why}", self.outlook.label(task));
            drop(self.screen.borrow_mut().say(&line));
        }
    }
}

/// The state, or a verdict that begins with the outcome.
fn words(server: &Server, answer: &Value, resolved: bool) -> String {
    let state = field(answer, "/status/state");
    let runs = answer["status"]["runs"].as_array().map_or(0, Vec::len);
    match shown::verdict_of(server, answer).filter(|_| resolved && state != "completed") {
        Some(verdict) => verdict,
        None if runs > 1 => format!("{state} (run {})", runs - 1),
        None => state,
    }
}

struct Screen {
    lines: Vec<String>,
    rewrites: bool,
    drawn: usize,
}

impl Screen {
    fn new(tasks: usize) -> Self {
        let rewrites = std::io::stderr().is_terminal() && tasks <= LINES_MAX;
        Self { lines: vec![String::new(); tasks], rewrites, drawn: 0 }
    }

    fn show(&mut self, n: usize, line: String) {
        if self.lines[n] == line {
            return;
        }
        self.lines[n] = line;
        drop(self.write(n));
    }

    /// Prints a line above the others.
    fn say(&mut self, line: &str) -> std::io::Result<()> {
        let mut out = std::io::stderr().lock();
        if self.drawn > 0 {
            write!(out, "\x1b[{}A\r\x1b[J", self.drawn)?;
        }
        writeln!(out, "{line}")?;
        drop(out);
        let was_drawn = std::mem::take(&mut self.drawn) > 0;
        if was_drawn { self.write(0) } else { Ok(()) }
    }

    fn write(&mut self, n: usize) -> std::io::Result<()> {
        let mut out = std::io::stderr().lock();
        if !self.rewrites {
            return writeln!(out, "{}", self.lines[n]);
        }
        if self.drawn > 0 {
            write!(out, "\x1b[{}A", self.drawn)?;
        }
        // Disables line wrapping: each line must take one row.
        write!(out, "\x1b[?7l")?;
        for line in &self.lines {
            writeln!(out, "\r\x1b[2K{line}")?;
        }
        write!(out, "\x1b[?7h")?;
        self.drawn = self.lines.len();
        out.flush()
    }
}
