//! `tenure-bench-floor`: the minimal prototype that Tenure is compared with. See
//! [`tenure_bench::floor`].

use std::process::ExitCode;

use clap::Parser;
use tenure_bench::floor::{Settings, serve};

/// The server's allocator, so that only the work differs.
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
