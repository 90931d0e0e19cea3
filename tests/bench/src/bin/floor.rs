//! `tenure-bench-floor`: the bare prototype that Tenure is compared with. See [`tenure_bench::floor`].

use std::process::ExitCode;

use clap::Parser;
use tenure_bench::floor::{Settings, serve};

/// That of the server, so that the two differ in what they do.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match serve(&Settings::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure-bench-floor: {error}");
            ExitCode::FAILURE
        }
    }
}
