//! The program `tenure`.

use std::process::ExitCode;

/// Returns memory within seconds after a flood of large requests; the system's allocator keeps it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tenure_server::cli::main(std::env::args_os())
}
