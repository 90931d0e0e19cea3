//! A running PostgreSQL, started here or adopted, and its pid file.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::{sleep, timeout};

pub(super) const PID_FILE: &str = "postmaster.pid";
/// For an adopted process.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// A fast shutdown writes everything out. A longer one is aborted, and the next start recovers.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// PostgreSQL kills remaining processes itself 5 s after an immediate shutdown.
const QUIT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Postmaster {
    pid: Pid,
    pg_dir: PathBuf,
    /// None if adopted: only children can be waited for.
    child: Option<Child>,
}

impl Postmaster {
    pub(super) fn of_child(child: Child, pg_dir: &Path) -> Self {
        let pid =
            child.id().and_then(|pid| i32::try_from(pid).ok()).expect("a child that was not waited for has a pid");
        Self { pid: Pid::from_raw(pid), pg_dir: pg_dir.to_owned(), child: Some(child) }
    }

    pub(super) fn adopted(pid: i32, pg_dir: &Path) -> Self {
        Self { pid: Pid::from_raw(pid), pg_dir: pg_dir.to_owned(), child: None }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub(super) async fn exited(&mut self) -> String {
        if let Some(child) = &mut self.child {
            return match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
        }
        while runs_in(self.pid(), &self.pg_dir) {
            sleep(POLL_EVERY).await;
        }
        "it is gone".to_owned()
    }

    pub(super) fn has_exited(&mut self) -> bool {
        match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => !runs_in(self.pid.as_raw(), &self.pg_dir),
        }
    }

    pub(super) fn reload(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Requests a fast shutdown, which cuts all sessions.
    pub(super) fn ask_to_stop(&mut self) {
        if !self.has_exited() {
            self.signal(Signal::SIGINT);
        }
    }

    /// Stops PostgreSQL and waits for its end, using an immediate shutdown after a while.
    pub(super) async fn stop(&mut self) {
        self.ask_to_stop();
        if timeout(STOP_TIMEOUT, self.exited()).await.is_ok() {
            return;
        }
        tracing::warn!(
            postgres.pid = self.pid(),
            "PostgreSQL stops too slowly; stopping it at once, and its next start recovers"
        );
        self.signal(Signal::SIGQUIT);
        if timeout(QUIT_TIMEOUT, self.exited()).await.is_err() {
            tracing::error!(postgres.pid = self.pid(), "PostgreSQL does not stop; the next start will find it running");
        }
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) =
            kill(self.pid, signal).or_else(|error| if error == Errno::ESRCH { Ok(()) } else { Err(error) })
        {
            tracing::error!(postgres.pid = self.pid(), %error, "cannot send {signal} to PostgreSQL");
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PidFile {
    /// The process may be long gone.
    pub(super) pid: i32,
    /// None early in the start.
    pub(super) socket_dir: Option<PathBuf>,
    pub(super) ready: bool,
}

impl PidFile {
    /// Reads the file of this cluster; none if missing or incomplete.
    pub(super) fn find(pg_dir: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(pg_dir.join(PID_FILE)).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().collect();
        let pid = lines.first()?.trim().parse().ok().filter(|pid| *pid > 0)?;
        let socket_dir = lines.get(4).filter(|line| !line.is_empty()).map(PathBuf::from);
        let ready = lines.get(7).is_some_and(|status| status.trim() == "ready");
        Some(Self { pid, socket_dir, ready })
    }

    pub(super) fn find_running(pg_dir: &Path) -> Option<Self> {
        Self::find(pg_dir).filter(|file| runs_in(file.pid, pg_dir))
    }
}

/// Removes files of a dead postmaster whose pid belongs to another process, as after a container
/// restart: PostgreSQL would take that process for its predecessor and refuse to start. If the pid
/// is free, PostgreSQL's own check is better, because it also detects sessions that outlived the
/// postmaster.
pub(super) fn clear_reused_pid(pg_dir: &Path, socket_dir: &Path) {
    let Some(file) = PidFile::find(pg_dir) else { return };
    if kill(Pid::from_raw(file.pid), None) == Err(Errno::ESRCH) || runs_in(file.pid, pg_dir) {
        return;
    }
    tracing::warn!(
        postgres.pid = file.pid,
        "removing the pid file of a PostgreSQL that is gone; its pid belongs to another process now"
    );
    let socket = format!(".s.PGSQL.{}", super::socket::PORT);
    for path in [pg_dir.join(PID_FILE), socket_dir.join(&socket), socket_dir.join(format!("{socket}.lock"))] {
        // PostgreSQL reports files that cannot be removed.
        let _ = fs::remove_file(path);
    }
}

/// True if this process is a postmaster of this cluster, by its working directory, compared by
/// inode because of links. Systems without `/proc` (macOS) only tell that it is alive.
fn runs_in(pid: i32, pg_dir: &Path) -> bool {
    if !Path::new("/proc/self/cwd").exists() {
        return kill(Pid::from_raw(pid), None).is_ok();
    }
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match identity(Path::new(&format!("/proc/{pid}/cwd"))) {
        Ok(working_dir) => identity(pg_dir).is_ok_and(|cluster| cluster == working_dir),
        // Root without CAP_SYS_PTRACE, as in most containers, cannot read another user's working
        // directory. The command is public.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => was_started_in(pid, pg_dir),
        Err(_) => false,
    }
}

/// True if the command names the cluster, as for each postmaster started here.
fn was_started_in(pid: i32, pg_dir: &Path) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).any(|argument| argument == pg_dir.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_file_is_parsed_in_every_state() {
        let ready = "71\n/d/pg\n1700000000\n5432\n/d/run\n\n  123 456\nready   \n";
        let parsed = PidFile::parse(ready).unwrap();
        assert_eq!(parsed, PidFile { pid: 71, socket_dir: Some(PathBuf::from("/d/run")), ready: true });
        assert!(!PidFile::parse(&ready.replace("ready   ", "starting")).unwrap().ready);
        assert_eq!(PidFile::parse("71\n/d/pg\n").unwrap().socket_dir, None);
        for broken in ["", "x\n", "-71\n"] {
            assert_eq!(PidFile::parse(broken), None);
        }
    }

    #[test]
    fn postmaster_is_identified_by_its_command() {
        if !Path::new("/proc/self/cmdline").exists() {
            return;
        }
        let mut command = std::process::Command::new("/bin/sh");
        // Waits for a line that never comes.
        command.args(["-c", "read line", "-D", "/d/pg"]).stdin(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // A new process briefly has no arguments.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while !was_started_in(pid, Path::new("/d/pg")) && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let named = ["/d/pg", "/d", "/d/pg2"].map(|pg_dir| was_started_in(pid, Path::new(pg_dir)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(named, [true, false, false]);
        assert!(!was_started_in(pid, Path::new("/d/pg")), "it is gone");
    }
}
