//! Options of a task that runs a command, for `tenure task create` and `run`.

use clap::Args;
use serde_json::{Value, json};
use tenure_api::dates::Timestamp;
use tenure_api::ids::TaskGroupId;
use tenure_api::states::{OnDuplicate, Priority};

use super::id::TaskRef;
use super::{parse_on_duplicate, parse_priority};
use crate::cli::http::{CommandError, Server};
use crate::cli::when::{When, parse_date, parse_seconds, parse_when};

#[derive(Debug, Args)]
pub struct TaskOptions {
    /// The name of the task [default: its command]
    #[arg(long)]
    pub name: Option<String>,
    /// Its group [default: a new one]
    #[arg(long, value_name = "GROUP", allow_hyphen_values = true)]
    pub group: Option<TaskGroupId>,
    /// Its priority: highest, very-high, high, medium, low, very-low or lowest [default: lowest]
    #[arg(long, value_parser = parse_priority)]
    pub priority: Option<Priority>,
    /// Number of retries when its worker is lost, 0 to 49 [default: 5]
    #[arg(long)]
    pub retries: Option<u16>,
    /// Its deadline: a duration such as 2h, or a time such as 2027-01-31T12:00:00Z [default: as the
    /// policy of the queue says, or in 366 days]
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub deadline: Option<When>,
    /// Do not start it before: seconds, a duration such as 2h, or a time such as
    /// 2027-01-31T12:00:00Z [default: as the policy of the queue says]
    #[arg(long, value_name = "WHEN", value_parser = parse_delay)]
    pub delay: Option<Delay>,
    /// Time limit of the command: seconds, or a duration such as 2h, up to 5d [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub max_run_time: Option<i64>,
    /// Run it after these tasks are completed: one or more ids
    #[arg(long, value_name = "TASK", allow_hyphen_values = true)]
    pub after: Vec<TaskRef>,
    /// Environment variable of the command; repeat it for more
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub variables: Vec<(String, String)>,
    /// An artifact of another task, as a file for the command: `TASK/ARTIFACT`, and `=PATH` if the
    /// file has another name. The command runs after that task; repeat it for more
    #[arg(long = "input", value_name = "TASK/ARTIFACT[=PATH]", allow_hyphen_values = true, value_parser = parse_input)]
    pub inputs: Vec<Input>,
    /// A file that the command writes, to keep as an artifact, and `=NAME` if it has another name;
    /// a directory ends in a slash. Repeat it for more
    #[arg(long = "artifact", value_name = "PATH[=NAME]", value_parser = parse_output)]
    pub outputs: Vec<Output>,
    /// The key by which a limited queue limits or shares
    #[arg(long)]
    pub key: Option<String>,
    /// A name that at most one unresolved task of the queue may have
    #[arg(long, value_name = "NAME")]
    pub unique: Option<String>,
    /// If a task has the name: reject refuses the new one, coalesce takes the existing one, queue
    /// lets the new one wait [default: as the policy of the queue says, or reject]
    #[arg(long, value_name = "WHAT", value_parser = parse_on_duplicate, requires = "unique")]
    pub on_duplicate: Option<OnDuplicate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    Seconds(i64),
    Until(Timestamp),
}

/// An artifact of another task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    task: TaskRef,
    artifact: String,
    path: String,
}

/// A file or directory that becomes artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    path: String,
    name: Option<String>,
    is_directory: bool,
}

fn parse_delay(text: &str) -> Result<Delay, String> {
    let wrong = |_| "write seconds, a duration such as 2h, or a time such as 2027-01-31T12:00:00Z".to_owned();
    parse_date(text).map(Delay::Until).or_else(|_| parse_seconds(text).map(Delay::Seconds)).map_err(wrong)
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    if name.is_empty() {
        return Err("the name is missing: write NAME=VALUE".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn parse_input(text: &str) -> Result<Input, String> {
    let rule = "write the id of a task, a slash and the name of its artifact, such as \
                9HrBC1jMQ3KlZw4CssPUeQ/public/in.tar=in.tar";
    let (source, path) = text.rsplit_once('=').map_or((text, None), |(source, path)| (source, Some(path)));
    let (task, artifact) = source.split_once('/').ok_or(rule)?;
    let task = task.parse::<TaskRef>().map_err(|_| rule)?;
    let path = path.unwrap_or_else(|| artifact.rsplit('/').next().unwrap_or_default());
    if artifact.is_empty() || path.is_empty() {
        return Err(rule.to_owned());
    }
    Ok(Input { task, artifact: artifact.to_owned(), path: path.to_owned() })
}

fn parse_output(text: &str) -> Result<Output, String> {
    let (path, name) = text.rsplit_once('=').map_or((text, None), |(path, name)| (path, Some(name)));
    let is_directory = path.ends_with('/');
    let path = path.trim_end_matches('/');
    if path.is_empty() || name.is_some_and(str::is_empty) {
        return Err("write a path, or a path and the name of the artifact, such as out.tar=public/out.tar".to_owned());
    }
    Ok(Output { path: path.to_owned(), name: name.map(str::to_owned), is_directory })
}

impl TaskOptions {
    /// Adds the options to a task that runs a command.
    pub(super) fn add_to(&self, body: &mut Value, deadline: Option<Timestamp>) {
        if let Some(name) = &self.name {
            body["metadata"] = json!({ "name": name });
        }
        if let Some(group) = self.group {
            body["taskGroupId"] = json!(group);
        }
        if let Some(priority) = self.priority {
            body["priority"] = json!(priority);
        }
        if let Some(retries) = self.retries {
            body["retries"] = json!(retries);
        }
        if let Some(deadline) = deadline {
            body["deadline"] = json!(deadline);
        }
        match self.delay {
            Some(Delay::Seconds(seconds)) => body["options"]["delay"] = json!(seconds),
            Some(Delay::Until(time)) => body["options"]["notBefore"] = json!(time),
            None => {}
        }
        if let Some(key) = &self.key {
            body["options"]["key"] = json!(key);
        }
        let dependencies = self.dependencies();
        if !dependencies.is_empty() {
            body["dependencies"] = json!(dependencies);
        }
        self.add_to_payload(&mut body["payload"]);
    }

    /// Replaces short ids.
    pub(super) async fn find_tasks(&mut self, server: &Server) -> Result<(), CommandError> {
        let inputs = self.inputs.iter_mut().map(|input| &mut input.task);
        for task in self.after.iter_mut().chain(inputs) {
            *task = TaskRef::Id(task.find(server).await?);
        }
        Ok(())
    }

    /// A task may read artifacts of its dependencies only.
    fn dependencies(&self) -> Vec<TaskRef> {
        let mut dependencies = self.after.clone();
        for input in &self.inputs {
            if !dependencies.contains(&input.task) {
                dependencies.push(input.task);
            }
        }
        dependencies
    }

    fn add_to_payload(&self, payload: &mut Value) {
        for (name, value) in &self.variables {
            payload["env"][name] = json!(value);
        }
        if let Some(seconds) = self.max_run_time {
            payload["maxRunTime"] = json!(seconds);
        }
        if !self.inputs.is_empty() {
            let input =
                |Input { task, artifact, path }: &Input| json!({ "taskId": task, "artifact": artifact, "path": path });
            payload["inputs"] = self.inputs.iter().map(input).collect();
        }
        if !self.outputs.is_empty() {
            let output = |Output { path, name, is_directory }: &Output| {
                let kind = if *is_directory { "directory" } else { "file" };
                json!({ "path": path, "name": name.as_ref().unwrap_or(path), "type": kind })
            };
            payload["artifacts"] = self.outputs.iter().map(output).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "9HrBC1jMQ3KlZw4CssPUeQ";

    #[test]
    fn input_names_task_artifact_and_path() {
        let input = |text: &str| parse_input(&format!("{ID}/{text}")).map(|input| (input.artifact, input.path));
        let pair = |artifact: &str, path: &str| Ok((artifact.to_owned(), path.to_owned()));
        assert_eq!(input("public/in.tar"), pair("public/in.tar", "in.tar"));
        assert_eq!(input("in.tar"), pair("in.tar", "in.tar"));
        assert_eq!(input("public/a=b/in.tar=in/x.tar"), pair("public/a=b/in.tar", "in/x.tar"));
        for wrong in ["", "public/", "a="] {
            assert!(input(wrong).is_err(), "{wrong}");
        }
        assert!(parse_input(ID).is_err() && parse_input("build/public/in.tar").is_err());
    }

    #[test]
    fn output_is_file_or_directory() {
        let output = |path: &str, name: Option<&str>, is_directory| {
            Ok(Output { path: path.to_owned(), name: name.map(str::to_owned), is_directory })
        };
        assert_eq!(parse_output("out.tar"), output("out.tar", None, false));
        assert_eq!(parse_output("out/=public/out"), output("out", Some("public/out"), true));
        for wrong in ["", "/", "=x", "x="] {
            assert!(parse_output(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn delay_is_seconds_or_date() {
        assert_eq!(parse_delay("30"), Ok(Delay::Seconds(30)));
        assert_eq!(parse_delay("2h"), Ok(Delay::Seconds(7_200)));
        assert!(matches!(parse_delay("2027-01-31T12:00:00Z"), Ok(Delay::Until(_))));
        assert!(parse_delay("soon").is_err());
        assert!(parse_variable("A=b=c").is_ok_and(|pair| pair == ("A".to_owned(), "b=c".to_owned())));
        assert!(parse_variable("A").is_err() && parse_variable("=b").is_err());
    }
}
