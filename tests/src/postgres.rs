//! PostgreSQL's programs, run as a user that they accept, and the processes of a running cluster.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Pid;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};
use tempfile::TempDir;

/// Arguments of `initdb` for a test's cluster, which need not survive a crash of the machine.
pub const INITDB: [&str; 9] = ["-U", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"];

/// Returns a command for a program of PostgreSQL, from the folder `TENURE_TEST_PG_BIN` or from
/// Debian's newest version.
#[must_use]
pub fn command(program: &str) -> Command {
    let folder = std::env::var_os("TENURE_TEST_PG_BIN").map_or_else(newest_bin, PathBuf::from);
    let mut command = Command::new(folder.join(program));
    command.current_dir("/");
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command
}

fn newest_bin() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.max_by_key(|entry| entry.file_name().to_string_lossy().parse::<u32>().unwrap_or_default());
    newest.expect("TENURE_TEST_PG_BIN names the folder of PostgreSQL's programs").path().join("bin")
}

/// User and group that run PostgreSQL if this process is root, which PostgreSQL refuses.
fn user() -> Option<(u32, u32)> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let find = |name: &str| nix::unistd::User::from_name(name).ok().flatten();
    let user = find("postgres").or_else(|| find("nobody")).expect("the user postgres or nobody");
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

#[must_use]
pub fn new_folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::Builder::new().prefix("tenure-pg-").tempdir_in("/tmp").expect("/tmp can be written");
    // PostgreSQL requires this mode of its data folders, which inherit it.
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(folder.path(), private).expect("the folder is ours");
    if let Some((user, group)) = user() {
        std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).expect("root may give folders away");
    }
    folder
}

/// Runs `initdb` or `pg_basebackup` to create a cluster in a folder that does not exist.
pub fn make(maker: &mut Command, data: &Path) {
    let made = maker.arg("-D").arg(data).output().expect("PostgreSQL's programs are installed");
    assert!(made.status.success(), "{maker:?}: {}", String::from_utf8_lossy(&made.stderr));
}

/// Connects to the embedded PostgreSQL of a data directory; `None` while it does not run.
pub async fn connect_embedded(data_dir: &Path) -> Option<PgConnection> {
    let password = std::fs::read_to_string(data_dir.join("pg-password")).expect("the password's file");
    let about = std::fs::read_to_string(data_dir.join("pg/postmaster.pid")).ok()?;
    let lines: Vec<&str> = about.lines().collect();
    let options = PgConnectOptions::new_without_pgpass()
        .socket(lines.get(4)?)
        .port(lines.get(3)?.trim().parse().ok()?)
        .username("tenure")
        .password(password.trim())
        .database("tenure");
    options.disable_statement_logging().connect().await.ok()
}

#[must_use]
pub fn children(parent: Pid) -> Vec<Pid> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}

/// True if a process runs or is stopped; false for a zombie.
#[must_use]
pub fn runs(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[must_use]
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound port").port()
}
