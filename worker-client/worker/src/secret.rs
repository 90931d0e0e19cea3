//! Reads the worker's access token and hides it from tasks.
//!
//! The initial environment and the arguments of a process stay readable in `/proc` while it runs. A
//! worker that received its token there restarts itself without it, and passes it through a pipe.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use tenure_client::AccessToken;

use crate::Run;

pub const VARIABLE: &str = "TASKCLUSTER_ACCESS_TOKEN";
const OPTION: &str = "--access-token";
/// Every pipe can buffer this many bytes.
const TOKEN_BYTES_MAX: usize = 4096;
const OPEN_FILES: &str = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };

/// May restart this program with the same arguments except the token.
pub fn access_token(run: &Run) -> Result<AccessToken, String> {
    let arguments = std::env::args_os().skip(1).collect::<Vec<_>>();
    let public = without_secret(&arguments);
    if public.len() < arguments.len() || std::env::var_os(VARIABLE).is_some() {
        return Err(start_anew(run, public));
    }
    let token = match (&run.access_token_file, run.access_token_fd) {
        (Some(file), _) => read(file).map_err(|error| {
            format!(
                "--access-token-file {}: cannot be read ({error}); name a file that this user may read",
                file.display()
            )
        })?,
        (None, Some(number)) => {
            let token = read(&PathBuf::from(OPEN_FILES).join(number.to_string())).map_err(|error| {
                format!("--access-token-fd {number}: cannot be read ({error}); open it for reading")
            })?;
            // Commands would inherit it.
            nix::unistd::close(number)
                .map_err(|error| format!("--access-token-fd {number}: cannot be closed ({error})"))?;
            token
        }
        (None, None) => {
            return Err(format!(
                "the access token is missing; give --access-token-file, --access-token-fd or {VARIABLE}"
            ));
        }
    };
    match token.trim() {
        "" => {
            Err(format!("the access token is empty; give --access-token-file, --access-token-fd or {VARIABLE} with it"))
        }
        // Truncated, it would be another token.
        _ if token.len() > TOKEN_BYTES_MAX => Err(too_long()),
        token => Ok(AccessToken::new(token.to_owned())),
    }
}

fn read(file: &PathBuf) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(TOKEN_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

fn too_long() -> String {
    format!("the access token has more than {TOKEN_BYTES_MAX} bytes; give the one of the client")
}

pub fn this_program() -> Result<PathBuf, String> {
    // Valid even if the program's file is replaced.
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe().map_err(|error| format!("this program cannot find its own file: {error}"))
}

/// Returns only on failure, with the reason.
fn start_anew(run: &Run, mut arguments: Vec<OsString>) -> String {
    let explain = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let mut start = || -> Result<std::convert::Infallible, String> {
        let mut pipe = None;
        if run.access_token_file.is_none() && run.access_token_fd.is_none() {
            let token = run.access_token.as_deref().unwrap_or_default();
            if token.len() > TOKEN_BYTES_MAX {
                return Err(too_long());
            }
            let (reader, mut writer) = std::io::pipe().map_err(explain("the access token cannot be kept in a pipe"))?;
            writer.write_all(token.as_bytes()).map_err(explain("the access token cannot be kept in a pipe"))?;
            fcntl(&reader, FcntlArg::F_SETFD(FdFlag::empty()))
                .map_err(|error| format!("the access token cannot be kept in a pipe: {error}"))?;
            arguments.extend(["--access-token-fd".into(), reader.as_raw_fd().to_string().into()]);
            pipe = Some(reader);
        }
        // By its file's name, which tools show, or else the running program.
        let program = std::env::current_exe().ok().filter(|file| file.exists());
        let mut command = Command::new(program.unwrap_or(this_program()?));
        let error = command.args(&arguments).env_remove(VARIABLE).exec();
        drop(pipe);
        Err(format!("this program cannot restart itself without its secret in the environment: {error}"))
    };
    match start() {
        Ok(never) => match never {},
        Err(problem) => problem,
    }
}

fn without_secret(arguments: &[OsString]) -> Vec<OsString> {
    let mut public = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == OPTION {
            arguments.next();
        } else if !argument.to_string_lossy().starts_with(&format!("{OPTION}=")) {
            public.push(argument.clone());
        }
    }
    public
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_secret_is_removed_from_arguments() {
        for (given, left) in [
            ("run --access-token s --capacity 2", "run --capacity 2"),
            ("run --access-token=s --capacity 2", "run --capacity 2"),
            ("run --access-token-file s --access-token-fd 3", "run --access-token-file s --access-token-fd 3"),
            ("run --capacity 2 --access-token", "run --capacity 2"),
            ("run", "run"),
        ] {
            let split = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(without_secret(&split(given)), split(left), "{given}");
        }
    }
}
