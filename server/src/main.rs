//! The program `tenure`: reads the command line and calls the library.

use std::process::ExitCode;

/// The system's allocator keeps the memory that a flood of large requests needed; this one returns it within seconds.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tenure_server::cli::main(std::env::args_os())
}
