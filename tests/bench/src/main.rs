//! `tenure-bench`: measures a task queue from outside. See [`tenure_bench`].

use std::process::ExitCode;

use clap::Parser;
use tenure_bench::{Settings, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Settings::parse()).await {
        Ok(lines) => {
            print!("{lines}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tenure-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
