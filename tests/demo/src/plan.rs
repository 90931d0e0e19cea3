//! The tasks, their work, and their expected ends.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use chrono::TimeDelta;
use serde_json::{Value, json};
use tenure_api::ids::{TaskGroupId, TaskId, TaskQueueId};
use tenure_client::{Client, Metadata, NewTask, State};

use crate::Result;

const MORE_FILES: &str = "/usr/share/doc";
const NOT_SOURCE: [&str; 5] = ["target", "tenure-data", "run-data", "node_modules", "__pycache__"];
const FILE_SIZE_MAX: u64 = 4 << 20;
/// One file task in this many sleeps first, so that a killed worker holds something.
const SLEEPER_EVERY: usize = 6;
/// A task that cannot succeed follows after this many file tasks.
const MISFIT_EVERY: usize = 20;
const NAME_MAX: usize = 200;

/// Moves its result into place atomically: a task may run twice at once for a short time, when its
/// first worker was cut off.
const SCRIPT: &str = r#"
set -eu
sum=$(sha256sum < "$SOURCE")
lines=$(wc -l < "$SOURCE")
words=$(wc -w < "$SOURCE")
bytes=$(wc -c < "$SOURCE")
packed=$(gzip -c < "$SOURCE" | wc -c)
echo "${sum%% *}" $lines $words $bytes $packed > "$RESULT.$RUN_ID"
mv "$RESULT.$RUN_ID" "$RESULT"
echo "$SOURCE: $lines lines, $words words, $bytes bytes, $packed packed"
"#;

#[derive(Clone, Copy)]
pub struct Expected {
    pub state: State,
    pub reason: &'static str,
}

pub const COMPLETED: Expected = Expected { state: State::Completed, reason: "completed" };
const FAILED: Expected = Expected { state: State::Failed, reason: "failed" };
pub const CANCELED: Expected = Expected { state: State::Exception, reason: "canceled" };
const MALFORMED: Expected = Expected { state: State::Exception, reason: "malformed-payload" };

pub struct Planned {
    pub id: TaskId,
    pub name: String,
    pub expected: Expected,
    pub file: Option<CountedFile>,
    payload: Value,
}

pub struct CountedFile {
    pub source: PathBuf,
    pub result: PathBuf,
}

impl Planned {
    pub fn of_script(name: &str, expected: Expected, script: &str) -> Result<Self> {
        without_file(name, expected, json!({ "command": [["/bin/sh", "-c", script]] }))
    }

    pub fn definition(&self, queue: &TaskQueueId, group: TaskGroupId, client: &Client) -> NewTask {
        let created = client.now();
        let deadline = (created.time() + TimeDelta::hours(1)).into();
        let metadata = Metadata {
            name: self.name.clone(),
            description: "A task of the demonstration.".into(),
            owner: "demo@localhost".into(),
            source: "http://localhost/tenure-demo".into(),
        };
        let mut task = NewTask::new(queue.clone(), created, deadline, self.payload.clone(), metadata);
        task.task_group_id = Some(group);
        task.tags = BTreeMap::from([("demo".to_owned(), self.expected.reason.to_owned())]);
        task
    }
}

pub fn plan(trees: &[PathBuf], max: usize, scratch: &Path) -> Result<Vec<Planned>> {
    let mut files = Vec::new();
    if trees.is_empty() {
        find_files(&std::env::current_dir()?, max, &mut files);
        find_files(Path::new(MORE_FILES), max, &mut files);
    }
    for tree in trees {
        find_files(&std::path::absolute(tree)?, max, &mut files);
    }
    let mut misfits = misfits().into_iter().cycle();
    let mut tasks = Vec::new();
    for (number, source) in files.into_iter().enumerate() {
        tasks.push(count(number, source, scratch)?);
        if number % MISFIT_EVERY == MISFIT_EVERY / 2 {
            tasks.extend(
                misfits.next().map(|(name, expected, payload)| without_file(name, expected, payload)).transpose()?,
            );
        }
    }
    Ok(tasks)
}

fn new_id() -> Result<TaskId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(TaskId::from_random(bytes))
}

fn count(number: usize, source: PathBuf, scratch: &Path) -> Result<Planned> {
    let result = scratch.join("results").join(format!("{number:05}"));
    let mut commands = vec![json!(["/bin/sh", "-c", SCRIPT])];
    if number.is_multiple_of(SLEEPER_EVERY) {
        commands.insert(0, json!(["sleep", "2"]));
    }
    let payload = json!({ "command": commands, "env": { "SOURCE": source, "RESULT": result }, "maxRunTime": 60 });
    let shown: String = source.to_string_lossy().chars().take(NAME_MAX).collect();
    let file = Some(CountedFile { source, result });
    Ok(Planned { id: new_id()?, name: format!("count {shown}"), expected: COMPLETED, file, payload })
}

fn without_file(name: &str, expected: Expected, payload: Value) -> Result<Planned> {
    Ok(Planned { id: new_id()?, name: name.to_owned(), expected, file: None, payload })
}

fn misfits() -> [(&'static str, Expected, Value); 10] {
    let shell = |script: &str| json!({ "command": [["/bin/sh", "-c", script]] });
    [
        ("exits with 1", FAILED, shell("echo this task is meant to fail >&2; exit 1")),
        ("has a text for a command", MALFORMED, json!({ "command": "ls -l" })),
        ("names no program that exists", FAILED, json!({ "command": [["no-such-program"]] })),
        ("has no command", MALFORMED, json!({ "env": {} })),
        ("dies by a signal", FAILED, shell("kill -SEGV $$")),
        ("has an unknown field", MALFORMED, json!({ "command": [["true"]], "image": "debian" })),
        ("runs too long", FAILED, json!({ "command": [["sleep", "30"]], "maxRunTime": 1 })),
        ("has a number in its environment", MALFORMED, json!({ "command": [["true"]], "env": { "N": 1 } })),
        ("fails in its second command", FAILED, json!({ "command": [["true"], ["false"], ["true"]] })),
        ("has no time to run", MALFORMED, json!({ "command": [["true"]], "maxRunTime": 0 })),
    ]
}

/// Adds the files below `dir` in order of their names, up to `max` in total. Skips unreadable ones.
fn find_files(dir: &Path, max: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = dir.read_dir() else { return };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let Ok(about) = path.symlink_metadata() else { continue };
        if found.len() >= max || is_not_source(&path) {
            continue;
        }
        if about.is_dir() {
            find_files(&path, max, found);
        } else if about.is_file() && (1..=FILE_SIZE_MAX).contains(&about.len()) && std::fs::File::open(&path).is_ok() {
            found.push(path);
        }
    }
}

/// Also true of hidden files, and of names that JSON cannot express.
fn is_not_source(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_none_or(|name| name.starts_with('.') || name.ends_with(".log") || NOT_SOURCE.contains(&name))
}
