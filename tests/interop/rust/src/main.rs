//! Performs ../cases.json with the crate `taskcluster`.

mod calls;
mod case;
mod fits;

use std::env;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::case::{Case, lacks};

const NAME: &str = "rust";

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let setting = |name: &str| env::var(name).with_context(|| format!("{name} is not set"));
    let path = setting("TENURE_INTEROP_CASES")?;
    let table: Value = serde_json::from_slice(&std::fs::read(&path).with_context(|| format!("cannot read {path}"))?)?;
    let root_url = setting("TASKCLUSTER_ROOT_URL")?;
    let root =
        json!({"clientId": setting("TASKCLUSTER_CLIENT_ID")?, "accessToken": setting("TASKCLUSTER_ACCESS_TOKEN")?});
    let without = env::var("TENURE_INTEROP_WITHOUT").unwrap_or_default();

    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for case in table["cases"].as_array().into_iter().flatten() {
        let name = case["name"].as_str().unwrap_or_default();
        if let Some(reason) = reason_to_skip(case, &without) {
            skipped += 1;
            println!("skipped {name}: {reason}");
            continue;
        }
        match Case::new(case, &table["templates"], &root_url, &root)?.run().await {
            Ok(()) => {
                passed += 1;
                println!("ok {name}");
            }
            Err(mismatch) => {
                failed += 1;
                println!("FAILED {name}: {mismatch}");
            }
        }
    }
    println!("{NAME}: {passed} passed, {failed} failed, {skipped} skipped");
    Ok(if passed > 0 && failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn reason_to_skip(case: &Value, without: &str) -> Option<String> {
    let needs = case["needs"].as_str().filter(|area| without.split(',').any(|missing| missing == *area));
    let lacking = lacks(case).then(|| "this client lacks it".to_owned());
    needs.map(|area| format!("the server has no {area}")).or(lacking)
}
