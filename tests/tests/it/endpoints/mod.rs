//! One table of every operation of the API, with each success and each refusal. It is executed
//! against a real server, and must cover the API's document.

mod alone;
mod derived;
mod row;
mod run;
mod state;
mod stored;
mod table;

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use serde_json::Value;
use tenure_server::http::docs::document;
use tenure_server::http::docs::sample::Sample;
use tenure_server::http::routes;

use self::derived::is_open;
use self::row::{OperationRows, Outcome, Row};
use crate::openapi::Operation;

/// Parts of the API whose operations must all be in the table.
const COVERED: [&str; 4] = ["queue", "auth", "object", "worker-manager"];
/// Errors that no request causes, of the API and of stored bytes; tests of faults have them.
const NOBODYS: [&str; 4] = ["InternalServerError", "ServiceUnavailable", "InternalError", "Unavailable"];
const LANES: usize = 4;

pub struct Tested {
    pub operation: Operation,
    pub entry: OperationRows,
    pub rows: Vec<Row>,
}

fn tested(document: &Value) -> Vec<Tested> {
    let with_rows = |entry: OperationRows| {
        let operation = Operation::find(document, entry.name);
        let rows = derived::rows(&operation, &entry);
        Tested { operation, entry, rows }
    };
    table::entries().into_iter().map(with_rows).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_of_the_table_holds() {
    let bench = state::Bench::start().await;
    let document = document(&routes(), &Sample::fixed());
    let table = tested(&document);
    let running = table.iter().map(|tested| run::all(&bench, &document, tested));
    let wrong = futures_util::stream::iter(running).buffer_unordered(LANES).collect::<Vec<_>>().await.concat();
    assert!(wrong.is_empty(), "{} rows do not hold:\n{}", wrong.len(), wrong.join("\n"));
    assert!(bench.rig.server.stop().await.success());
}

#[test]
fn table_has_a_row_for_every_outcome_of_the_document() {
    let document = document(&routes(), &Sample::fixed());
    let table = tested(&document);
    let names: Vec<&str> = table.iter().map(|tested| tested.entry.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "an operation stands twice in the table");
    let mut missing = Vec::new();
    for operation in Operation::all(&document) {
        let Some(tested) = table.iter().find(|tested| tested.entry.name == operation.name()) else {
            if COVERED.iter().any(|tag| operation.described["tags"][0] == *tag) {
                missing.push(operation.name().to_owned());
            }
            continue;
        };
        if !tested.rows.iter().any(|row| matches!(row.outcome, Outcome::Success(_)) && row.method.is_none()) {
            missing.push(format!("{}: a success", operation.name()));
        }
        let has = |code: &str| {
            let row = |row: &Row| matches!(row.outcome, Outcome::Refusal(refusal) if refusal.as_str() == code);
            tested.rows.iter().any(row) || tested.entry.elsewhere.iter().any(|(_, refusal, _)| *refusal == code)
        };
        // A caller with the public scopes cannot lack them.
        let cannot = |code: &str| NOBODYS.contains(&code) || code == "InsufficientScopes" && is_open(&operation);
        let codes = operation.refusals().into_iter();
        missing.extend(
            codes.filter(|code| !has(code) && !cannot(code)).map(|code| format!("{}: {code}", operation.name())),
        );
    }
    assert!(missing.is_empty(), "add rows to tests/tests/it/endpoints/table: {missing:#?}");
}

#[test]
fn every_test_that_the_table_names_exists() {
    let source = concat!(
        include_str!("alone.rs"),
        include_str!("../blobs/any_store.rs"),
        include_str!("../blobs/files.rs"),
        include_str!("../blobs/gate.rs"),
        include_str!("../guarded.rs"),
        include_str!("../partitions.rs"),
        include_str!("../plain_urls.rs"),
        include_str!("../sealed_artifacts.rs"),
        include_str!("../sessions/inbox.rs"),
    );
    for (_, code, test) in table::entries().into_iter().flat_map(|entry| entry.elsewhere) {
        assert!(source.contains(&format!("async fn {test}()")), "{code}: there is no test {test}");
    }
}
