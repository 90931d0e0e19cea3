//! docs/endpoints.md, made from the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;
use tenure_api::errors::ErrorCode;

use super::Tested;
use super::contract::{QUEUE_API, stability};
use super::row::{Outcome, Row};
use crate::openapi::Operation;

const INTRODUCTION: &str = "<!-- Made by scripts/endpoints from tests/tests/it/endpoints. Do not edit. -->

# Endpoints

Every operation of Taskcluster's Queue API, what of it Tenure has, and which cases of it are tested. The tests send what
stands below to a real server: each case in the state that it names, with the error code that it must give. What an
operation means, its bodies and its examples are in the [document of the API](../openapi/openapi.json), which a server
shows at `/docs/`.

`500 InternalServerError` and `503 ServiceUnavailable` can come from any operation and are not repeated; tests of faults
bring them about. A success is checked against the schema of its answer. Refusals are sent before the success, to the same
task, so that the success shows that they changed nothing.
";

const AREAS: [(&str, &str); 5] = [
    ("service", "Service"),
    ("queue", "Queue"),
    ("auth", "Auth"),
    ("object", "Object"),
    ("worker-manager", "Worker manager"),
];

/// The page.
pub fn markdown(document: &Value, table: &[Tested]) -> String {
    let mut page = INTRODUCTION.to_owned();
    overview(&mut page, document, table);
    for (tag, title) in AREAS {
        let of_area: Vec<&Tested> = table.iter().filter(|one| one.operation.described["tags"][0] == tag).collect();
        if of_area.is_empty() {
            continue;
        }
        line(&mut page, &format!("\n## {title}"));
        of_area.into_iter().for_each(|tested| section(&mut page, tested));
    }
    page
}

fn line(page: &mut String, text: &str) {
    writeln!(page, "{text}").expect("a String takes whatever is written");
}

fn overview(page: &mut String, document: &Value, table: &[Tested]) {
    let operations: Vec<Operation> = Operation::all(document);
    let missing: Vec<_> =
        QUEUE_API.iter().filter(|(name, ..)| !operations.iter().any(|operation| operation.name() == *name)).collect();
    let there = QUEUE_API.len() - missing.len();
    line(page, "\n## Overview\n");
    line(page, &format!("{there} of {} operations of the Queue API are there.\n", QUEUE_API.len()));
    line(page, "| operation | stability | request, below `/api/queue/v1` | cases |\n|---|---|---|---|");
    for (name, stability, method, path) in QUEUE_API {
        let cases = match table.iter().find(|tested| tested.entry.name == *name) {
            Some(tested) => (tested.rows.len() + tested.entry.elsewhere.len()).to_string(),
            None if operations.iter().any(|operation| operation.name() == *name) => "not in the table".to_owned(),
            None => "**not implemented**".to_owned(),
        };
        let word = stability.word();
        let shown = if cases.starts_with(|first: char| first.is_ascii_digit()) {
            format!("[`{name}`](#{})", name.to_lowercase())
        } else {
            format!("`{name}`")
        };
        line(page, &format!("| {shown} | {word} | `{method} {path}` | {cases} |"));
    }
}

fn section(page: &mut String, tested: &Tested) {
    let (operation, name) = (&tested.operation, tested.entry.name);
    line(page, &format!("\n### {name}\n"));
    let summary = operation.described["summary"].as_str().unwrap_or_default();
    line(page, &format!("{summary}: `{} {}`.", operation.method, operation.path));
    if let Some(stability) = stability(name) {
        line(page, &format!("Taskcluster calls it {}.", stability.word()));
    }
    let about = operation.described["description"].as_str().unwrap_or_default();
    match about.split("\n\n").find(|part| part.starts_with("**Scopes:**")) {
        Some(scopes) => line(page, &scopes.replace("**Scopes:**", "Scopes:")),
        None => line(page, "Scopes: none."),
    }
    line(page, "");
    let mut outcomes: BTreeMap<(u16, &str), Vec<String>> = BTreeMap::new();
    for row in &tested.rows {
        outcomes.entry(outcome(operation, row)).or_default().push(row.case.clone());
    }
    for (status, code, test) in &tested.entry.elsewhere {
        outcomes.entry((*status, *code)).or_default().push(format!("{} (a test alone)", test.replace('_', " ")));
    }
    for ((status, code), cases) in outcomes {
        let code = if code.is_empty() { String::new() } else { format!(" `{code}`") };
        line(page, &format!("- **{status}**{code}: {}", cases.join("; ")));
    }
}

fn outcome(operation: &Operation, row: &Row) -> (u16, &'static str) {
    let refusal = |code: ErrorCode| (code.status(), code.as_str());
    match row.outcome {
        Outcome::Refusal(code) => refusal(code),
        Outcome::Success(_) => {
            let responses = operation.described["responses"].as_object();
            let mut statuses =
                responses.into_iter().flat_map(serde_json::Map::keys).filter_map(|text| text.parse().ok());
            let usual = statuses.find(|status| *status < 400).unwrap_or(200);
            (row.status.unwrap_or(usual), "")
        }
    }
}
