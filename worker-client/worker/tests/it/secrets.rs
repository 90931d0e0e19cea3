//! A task's view of its worker, and its rights as another user.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::binary::{bare_program, end, send};
use crate::queue::{Queue, TASK_IDS, TOKEN, claim, until};
use crate::worker::{LEASE, pid_in, shell};

const NOBODY: &str = "nobody";

/// Records what a task can read of its parent processes: environment, arguments, open files.
const LOOK_AROUND: &str = r#"
    p=$$
    while [ "$p" -gt 1 ]; do
      echo "$p" >> pids
      cat "/proc/$p/environ" "/proc/$p/cmdline" >> seen
      p=$(sed 's/.*) . //' "/proc/$p/stat" | cut -d ' ' -f 1)
    done
    for fd in /proc/self/fd/*; do
      case ${fd##*/} in 0|1|2) ;; *) timeout 1 cat "$fd" >> seen 2>/dev/null ;; esac
    done
    true
"#;

fn folder(mode: u32) -> TempDir {
    let dir = TempDir::new().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    dir
}

fn is_root() -> bool {
    let root = Uid::effective().is_root();
    if !root {
        println!("skipped: only root can be another user");
    }
    root
}

/// Returns the worker's process number.
async fn one_task(mut program: Command, queue: &Queue, report: &str) -> u32 {
    let child = program.spawn().unwrap();
    let id = child.id().unwrap();
    queue.wait_for(report, 1).await;
    send(&child, Signal::SIGTERM);
    let (code, log) = end(child).await;
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains(TOKEN), "{log}");
    id
}

#[tokio::test]
async fn no_process_above_task_shows_token() {
    for way in ["variable", "option", "file", "descriptor", "file and variable"] {
        let (queue, dir) = (Queue::start().await, TempDir::new().unwrap());
        queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell(LOOK_AROUND))]);
        let file = dir.path().join("token");
        std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
        let mut program = bare_program(&queue.root_url(), &dir.path().join("work"));
        match way {
            "variable" => program.env("TASKCLUSTER_ACCESS_TOKEN", TOKEN),
            "option" => program.args(["--access-token", TOKEN]),
            "file" => program.arg("--access-token-file").arg(&file),
            "file and variable" => program.arg("--access-token-file").arg(&file).env("TASKCLUSTER_ACCESS_TOKEN", TOKEN),
            _ => {
                // A shell opens the file twice, the second time without announcing it.
                let arguments: Vec<_> = program.as_std().get_args().map(ToOwned::to_owned).collect();
                let mut shell = Command::new("sh");
                shell.args(["-c", "file=$1; shift; exec \"$@\" 7<\"$file\" 9<\"$file\"", "sh"]).arg(&file);
                shell.arg(env!("CARGO_BIN_EXE_tenure-worker")).args(arguments).args(["--access-token-fd", "7"]);
                for (name, value) in program.as_std().get_envs() {
                    if let Some(value) = value {
                        shell.env(name, value)
                    } else {
                        shell.env_remove(name)
                    };
                }
                program = shell;
                program.stderr(std::process::Stdio::piped()).kill_on_drop(true)
            }
        };
        program.arg("--keep");
        let worker = one_task(program, &queue, "completed").await;
        let directory = dir.path().join("work").join(format!("{}-0", TASK_IDS[0]));
        let seen = std::fs::read(directory.join("seen")).unwrap();
        let pids = std::fs::read_to_string(directory.join("pids")).unwrap();
        assert!(pids.lines().any(|pid| pid == worker.to_string()), "{way}: {worker} is not among {pids}");
        assert!(!String::from_utf8_lossy(&seen).contains(TOKEN), "{way}: {}", String::from_utf8_lossy(&seen));
    }
}

#[tokio::test]
async fn unreadable_token_is_one_line_and_exit_code_2() {
    let dir = TempDir::new().unwrap();
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "\n").unwrap();
    let long = dir.path().join("long");
    std::fs::write(&long, "x".repeat(4097)).unwrap();
    let missing = dir.path().join("missing");
    for (arguments, expected) in [
        (vec![], "--access-token-file"),
        (vec!["--access-token-file".into(), missing.into_os_string()], "--access-token-file"),
        (vec!["--access-token-file".into(), empty.into_os_string()], "empty"),
        (vec!["--access-token-file".into(), long.into_os_string()], "more than 4096 bytes"),
        (vec!["--access-token-fd".into(), "99".into()], "--access-token-fd 99"),
    ] {
        let mut program = bare_program("http://127.0.0.1:1", dir.path());
        let (code, log) = end(program.args(&arguments).spawn().unwrap()).await;
        assert_eq!((code, log.lines().count()), (Some(2), 1), "{log}");
        assert!(log.contains(expected), "{log}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn worker_and_guards_are_closed_to_processes_of_user() {
    if !is_root() {
        return;
    }
    let (queue, dir) = (Queue::start().await, folder(0o755));
    let nobody = User::from_name(NOBODY).unwrap().expect("user nobody exists");
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    nix::unistd::chown(&work, Some(nobody.uid), Some(nobody.gid)).unwrap();
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &shell("echo $PPID > guard; sleep 1000"))]);
    let mut program = bare_program(&queue.root_url(), &work);
    program.env("TASKCLUSTER_ACCESS_TOKEN", TOKEN).uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
    let Ok(child) = program.spawn() else {
        println!("skipped: the program is where {NOBODY} may not look");
        return;
    };
    let guard = pid_in(&work.join(format!("{}-0/guard", TASK_IDS[0]))).await;
    for pid in [i32::try_from(child.id().unwrap()).unwrap(), guard] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains(&format!("\nUid:\t{}\t", nobody.uid)), "{status}");
        // The readable files of an unprotected process belong to its user.
        assert_eq!(Path::new(&format!("/proc/{pid}/environ")).metadata().unwrap().uid(), 0);
    }
    send(&child, Signal::SIGTERM);
    let (code, log) = end(child).await;
    assert_eq!(code, Some(0), "{log}");
}

#[tokio::test]
async fn commands_run_as_the_task_user() {
    if !is_root() {
        return;
    }
    let (queue, dir) = (Queue::start().await, folder(0o755));
    let token = dir.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let script = format!(
        "id -un; id -Gn; echo \"$USER in $HOME\"; echo to-stdout > /dev/stdout; echo made > made; \
         cat '{}' && echo READ; kill -9 $PPID && echo KILLED; cat /proc/$PPID/environ && echo LOOKED; rm live.log; true",
        token.display()
    );
    let payload = json!({"command": [["sh", "-c", script]],
                         "artifacts": [{"name": "made", "path": "made", "type": "file"}]});
    queue.hand_out(&[claim(TASK_IDS[0], LEASE, &payload)]);
    let work = dir.path().join("work");
    let mut program = bare_program(&queue.root_url(), &work);
    program.args(["--task-user", NOBODY, "--access-token-file"]).arg(&token);
    one_task(program, &queue, "completed").await;
    let log = queue.artifact(TASK_IDS[0], "public/logs/live_backing.log").text();
    let nobody = User::from_name(NOBODY).unwrap().expect("user nobody exists");
    assert!(log.contains(&format!("\n{NOBODY}\n")), "{log}");
    assert!(log.contains(&format!("\n{NOBODY} in {}\n", nobody.dir.display())), "{log}");
    assert!(log.contains("\nto-stdout\n"), "{log}");
    assert!(!log.lines().any(|line| ["READ", "KILLED", "LOOKED"].contains(&line)) && !log.contains(TOKEN), "{log}");
    assert_eq!(queue.artifact(TASK_IDS[0], "made").content(), b"made\n");
    let gone = || (!work.join(format!("{}-0", TASK_IDS[0])).exists()).then_some(());
    until("the directory to be removed", gone).await;
}

#[tokio::test]
async fn invalid_task_user_is_one_line_and_exit_code_2() {
    if !is_root() {
        return;
    }
    let (open, closed) = (folder(0o755), folder(0o700));
    for (user, work, expected) in [
        ("no-such-user", &open, "there is no user no-such-user"),
        ("root", &open, "root"),
        (NOBODY, &closed, "may not enter"),
    ] {
        let mut program = bare_program("http://127.0.0.1:1", &work.path().join("work"));
        program.args(["--task-user", user]).arg("--access-token-file");
        let token = work.path().join("token");
        std::fs::write(&token, TOKEN).unwrap();
        let (code, log) = end(program.arg(&token).spawn().unwrap()).await;
        assert_eq!((code, log.lines().count()), (Some(2), 1), "{log}");
        assert!(log.contains("--task-user") && log.contains(expected), "{log}");
    }
}
