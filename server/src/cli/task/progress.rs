//! Waiting for tasks while showing how they are: one line for each on a terminal, rewritten as it changes; a new line
//! for each change elsewhere. Progress goes to standard error, so that standard output has the result alone.

use std::cell::RefCell;
use std::io::{IsTerminal as _, Write as _};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;
use tenure_api::ids::TaskId;

use crate::cli::http::{CommandError, Server, field};

/// Tasks that are waited for at the same time.
const WAITS_MAX: usize = 100;
/// How long one request waits, and so how often an intermediate state is shown.
const LOOK_SECONDS: u32 = 3;
/// More tasks than this do not fit on a screen.
const LINES_MAX: usize = 20;

/// Waits until all of these tasks are resolved; the answers are in their order.
pub async fn wait(server: &Server, tasks: &[TaskId]) -> Result<Vec<Value>, CommandError> {
    let screen = RefCell::new(Screen::new(tasks));
    stream::iter(tasks.iter().enumerate())
        .map(|(n, &task)| wait_for_one(server, &screen, n, task))
        .buffered(WAITS_MAX)
        .try_collect()
        .await
}

async fn wait_for_one(
    server: &Server,
    screen: &RefCell<Screen>,
    n: usize,
    task: TaskId,
) -> Result<Value, CommandError> {
    // The first request does not wait, so that there is something to show.
    let mut seconds = 0;
    loop {
        let answer = server.client.wait_for_task(task, seconds).await.map_err(|error| server.error(&error))?;
        screen.borrow_mut().show(n, &answer);
        if answer["resolved"] == Value::Bool(true) {
            return Ok(answer);
        }
        seconds = LOOK_SECONDS;
    }
}

struct Screen {
    lines: Vec<String>,
    rewrites: bool,
    /// Lines that are on the screen and can be rewritten.
    drawn: usize,
}

impl Screen {
    fn new(tasks: &[TaskId]) -> Self {
        let rewrites = std::io::stderr().is_terminal() && tasks.len() <= LINES_MAX;
        Self { lines: tasks.iter().map(ToString::to_string).collect(), rewrites, drawn: 0 }
    }

    fn show(&mut self, n: usize, answer: &Value) {
        let line = line(answer);
        if self.lines[n] == line {
            return;
        }
        self.lines[n] = line;
        // The wait does not fail because its progress cannot be shown.
        drop(self.write(n));
    }

    fn write(&mut self, n: usize) -> std::io::Result<()> {
        let mut out = std::io::stderr().lock();
        if !self.rewrites {
            return writeln!(out, "{}", self.lines[n]);
        }
        if self.drawn > 0 {
            write!(out, "\x1b[{}A", self.drawn)?;
        }
        for line in &self.lines {
            writeln!(out, "\r\x1b[2K{line}")?;
        }
        self.drawn = self.lines.len();
        out.flush()
    }
}

fn line(answer: &Value) -> String {
    let runs = answer["status"]["runs"].as_array().map_or(0, Vec::len);
    let tries = if runs > 1 { format!(" (run {})", runs - 1) } else { String::new() };
    format!("{}  {}{tries}", field(answer, "/status/taskId"), field(answer, "/status/state"))
}
