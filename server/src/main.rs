//! The program `tenure`: reads the command line and hands over to the library.

use std::process::ExitCode;

/// The system's allocator keeps what a flood of large requests made it take; this one gives it back within seconds.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tenure_server::cli::main(std::env::args_os())
}
