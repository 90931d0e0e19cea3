//! The program `tenure`: reads the command line and hands over to the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure_server::cli::main(std::env::args_os())
}
