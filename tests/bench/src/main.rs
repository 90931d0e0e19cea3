//! `tenure-bench`: measures a task queue from outside. See [`tenure_bench`].

use std::process::ExitCode;

use clap::Parser;
use tenure_bench::{BenchError, Settings, ratio, run};

const RATIO: &str = "ratio";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match start().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn start() -> Result<(), BenchError> {
    let mut words = std::env::args_os();
    if words.nth(1).is_some_and(|word| word == RATIO) {
        return ratio::run(&ratio::Settings::parse_from([RATIO.into()].into_iter().chain(words))).await;
    }
    print!("{}", run(&Settings::parse()).await?);
    Ok(())
}
