//! Commands stopped by a signal exit with 128 plus the number of the signal. A killed process has
//! no exit code; only a shell's `$?` is the same for both.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_tests::server::binary;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::{QUEUE, account, created};
use crate::rig::{Rig, TIMEOUT};

/// The program with the default action of SIGINT, even if a script runs these tests in the
/// background.
pub fn interruptible() -> Command {
    if cfg!(target_os = "linux") {
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(binary());
        return command;
    }
    Command::new(binary())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_command_exits_with_the_code_of_its_signal() {
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "make"]).await;
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        for args in [
            &["task", "wait", &task][..],
            &["task", "run", "-q", QUEUE, "--", "make"],
            &["task", "create", "--wait", "-q", QUEUE, "--", "make"],
            &["group", "show", "--watch", &task],
            &["events", "--after", "0"],
        ] {
            let mut command = interruptible();
            command.args(args).envs(account(&rig)).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.kill_on_drop(true).spawn().unwrap();
            let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut err = BufReader::new(child.stderr.take().unwrap()).lines();
            // A command has started once it has printed something.
            let begun = async {
                tokio::select! { line = out.next_line() => line, line = err.next_line() => line }
            };
            let line = tokio::time::timeout(TIMEOUT, begun).await.unwrap().unwrap();
            assert!(line.is_some(), "{args:?}");
            kill(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()), signal).unwrap();
            let ended = tokio::time::timeout(TIMEOUT, child.wait()).await;
            let status = ended.unwrap_or_else(|_| panic!("{args:?} goes on after {signal}")).unwrap();
            assert_eq!(status.code(), Some(code), "{args:?} after {signal}: {status}");
        }
    }
}

/// A background command of a script ignores the Ctrl-C of its terminal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ignored_interrupt_stops_no_command() {
    if !std::path::Path::new("/proc/self/status").exists() {
        // Only Linux shows the ignored signals of a process.
        return;
    }
    let rig = Rig::start().await;
    let task = created(&rig, &["--", "make"]).await;
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" INT; exec "$@""#, "sh"]).arg(binary()).args(["task", "wait", &task]);
    let mut child = command.envs(account(&rig)).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
    let mut err = BufReader::new(child.stderr.take().unwrap()).lines();
    tokio::time::timeout(TIMEOUT, err.next_line()).await.unwrap().unwrap();
    kill(pid, Signal::SIGINT).unwrap();
    let ends = tokio::time::timeout(std::time::Duration::from_millis(500), child.wait()).await;
    assert!(ends.is_err(), "the command ended with its terminal");
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(tokio::time::timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(143));
}
