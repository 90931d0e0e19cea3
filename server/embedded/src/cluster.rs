//! The cluster on disk, and the start of its PostgreSQL.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::time::{Instant, sleep};

use super::account::Account;
use super::binaries::Binaries;
use super::error::{EmbeddedError, io_error};
use super::postmaster::{PID_FILE, PidFile, Postmaster, clear_reused_pid};
use super::tuning::Machine;
use super::{files, socket};
use tenure_store::cluster;

pub(super) const DATABASE: &str = "tenure";
const OWNER: &str = "tenure";
/// Exists in every cluster.
const ADMIN_DATABASE: &str = "postgres";
const LOG: &str = "postgres.log";
const OLD_LOG: &str = "log.old";
const SETTINGS: &str = "tenure.conf";
/// Exists in every cluster.
const VERSION: &str = "PG_VERSION";
const UNFINISHED: &str = "pg.unfinished-";
const LOG_BYTES_MAX: u64 = 16 << 20;
/// For sessions of a killed PostgreSQL, which end soon and until then prevent a start.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(30);
/// From readiness to the first connection. Recovery has no time limit.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(20);
const MENTION_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Cluster {
    data_dir: PathBuf,
    pg_dir: PathBuf,
    socket_dir: PathBuf,
    account: Account,
    binaries: Binaries,
    password: String,
}

#[derive(PartialEq, Eq)]
enum Wait {
    Ready,
    Exited,
}

pub(super) fn exists(data_dir: &Path) -> bool {
    files::pg_dir(data_dir).join(VERSION).exists()
}

/// Fails if the data directory lost its cluster, for example an unmounted volume. Evidence is the
/// log, which only PostgreSQL in a complete cluster writes, and the password, which a restored dump
/// does not have.
pub(super) fn check_not_lost(data_dir: &Path) -> Result<(), EmbeddedError> {
    let log = data_dir.join(LOG);
    let has_run =
        [log.with_extension(OLD_LOG), log].iter().any(|path| fs::metadata(path).is_ok_and(|log| log.len() > 0));
    if has_run && files::find_password(data_dir)?.is_some() {
        return Err(EmbeddedError::Lost { pg_dir: files::pg_dir(data_dir), password: files::password_path(data_dir) });
    }
    Ok(())
}

impl Cluster {
    /// Checks the existing cluster or creates one. The caller holds the lock.
    pub(super) async fn prepare(data_dir: &Path, pg_bin: Option<&Path>) -> Result<Self, EmbeddedError> {
        let pg_dir = files::pg_dir(data_dir);
        let account = Account::choose(&pg_dir)?;
        account.warn_if_shared();
        files::let_pass(data_dir, &account)?;
        account.check_can_enter(data_dir)?;
        let made_by = find_version(&pg_dir)?;
        if made_by.is_none() {
            check_not_lost(data_dir)?;
        }
        let wanted = made_by.as_deref().map(|version| (pg_dir.as_path(), version));
        let binaries = Binaries::find(pg_bin, wanted, &account).await?;
        let password =
            if made_by.is_some() { files::get_password(data_dir) } else { files::find_or_make_password(data_dir) }?;
        let socket_dir = socket::make_socket_dir(data_dir, &account)?;
        let cluster = Self { data_dir: data_dir.to_owned(), pg_dir, socket_dir, account, binaries, password };
        if made_by.is_none() {
            cluster.make().await?;
        }
        Ok(cluster)
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub(super) fn use_socket_dir(&mut self, socket_dir: PathBuf) {
        self.socket_dir = socket_dir;
    }

    pub(super) fn connect_options(&self, database: &str) -> PgConnectOptions {
        connect_options(&self.socket_dir, &self.password, database)
    }

    /// Creates the cluster under a temporary name and renames it, so that the next start finds a
    /// complete one or none.
    async fn make(&self) -> Result<(), EmbeddedError> {
        tracing::info!(
            user = self.account.name(),
            postgres.version = self.binaries.major,
            "making a PostgreSQL cluster in {}",
            self.pg_dir.display()
        );
        self.remove_unfinished();
        // A new name each time: the initdb of a killed server may still write to the old one.
        let unfinished = self.data_dir.join(format!("{UNFINISHED}{}", files::random_hex(4)?));
        files::make_private_dir(&unfinished, &self.account).map_err(io_error("make", &unfinished))?;
        let password_file = unfinished.join("password");
        files::write_private(&password_file, self.password.as_bytes(), Some(&self.account))?;
        let new = files::pg_dir(&unfinished);
        let made = self.initdb(&new, &password_file).await.and_then(|()| self.configure(&new));
        if made.is_err() {
            self.remove_unfinished();
        }
        made?;
        fs::rename(&new, &self.pg_dir)
            .and_then(|()| files::sync_parent(&self.pg_dir))
            .map_err(io_error("make", &self.pg_dir))?;
        self.remove_unfinished();
        Ok(())
    }

    async fn initdb(&self, new: &Path, password_file: &Path) -> Result<(), EmbeddedError> {
        let mut command = self.account.command(&self.binaries.initdb);
        command
            .args(["--username", OWNER, "--encoding", "UTF8", "--locale", "C", "--auth", "scram-sha-256"])
            .arg("--pwfile")
            .arg(password_file)
            .arg("--pgdata")
            .arg(new)
            .stdin(Stdio::null());
        let output = command.output().await.map_err(io_error("run", &self.binaries.initdb))?;
        if output.status.success() {
            return Ok(());
        }
        let reason =
            main_complaint(&String::from_utf8_lossy(&output.stderr)).unwrap_or_else(|| output.status.to_string());
        Err(EmbeddedError::Failed { program: self.binaries.initdb.display().to_string(), reason })
    }

    /// Adds our settings file, and allows only password logins over the socket.
    fn configure(&self, new: &Path) -> Result<(), EmbeddedError> {
        files::write_private(&new.join("pg_hba.conf"), b"local all all scram-sha-256\n", Some(&self.account))?;
        files::write_private(&new.join(SETTINGS), b"", Some(&self.account))?;
        let path = new.join("postgresql.conf");
        let append = || -> io::Result<()> {
            let mut file = OpenOptions::new().append(true).open(&path)?;
            writeln!(file, "\ninclude '{SETTINGS}'\n# Your own settings, below this line, win over tenure's.")?;
            file.sync_all()
        };
        append().map_err(io_error("write", &path))
    }

    /// Failures are retried at the next start.
    fn remove_unfinished(&self) {
        for entry in fs::read_dir(&self.data_dir).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED)
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                tracing::warn!(%error, "cannot remove {}", entry.path().display());
            }
        }
    }

    /// Adopts a PostgreSQL that already runs on this cluster, and returns its socket directory.
    async fn adopt(&self, slot: &mut Option<Postmaster>) -> Result<Option<PathBuf>, EmbeddedError> {
        let Some(file) = PidFile::find_running(&self.pg_dir) else { return Ok(None) };
        let postmaster = slot.insert(Postmaster::adopted(file.pid, &self.pg_dir));
        if self.wait_until_ready(postmaster).await? == Wait::Exited {
            *slot = None;
            return Ok(None);
        }
        let socket_dir = PidFile::find(&self.pg_dir).and_then(|file| file.socket_dir);
        tracing::info!(postgres.pid = file.pid, "adopted a PostgreSQL that was left running");
        self.write_settings().await?;
        postmaster.reload();
        Ok(Some(socket_dir.unwrap_or_else(|| self.socket_dir.clone())))
    }

    /// Adopts or starts a PostgreSQL, waits until it accepts connections, and returns its socket
    /// directory. `slot` holds the process from its start on, so that it is not lost if this future
    /// is dropped.
    pub(super) async fn start(&self, slot: &mut Option<Postmaster>) -> Result<PathBuf, EmbeddedError> {
        let deadline = Instant::now() + LEFTOVER_TIMEOUT;
        loop {
            if let Some(socket_dir) = self.adopt(slot).await? {
                return Ok(socket_dir);
            }
            clear_reused_pid(&self.pg_dir, &self.socket_dir);
            self.write_settings().await?;
            let (mut log, log_start) = self.open_log()?;
            let postmaster = slot.insert(Postmaster::of_child(self.launch(&log)?, &self.pg_dir));
            if self.wait_until_ready(postmaster).await? == Wait::Ready {
                tracing::info!(
                    postgres.pid = postmaster.pid(),
                    postgres.version = self.binaries.major,
                    "PostgreSQL runs"
                );
                return Ok(self.socket_dir.clone());
            }
            let how = postmaster.exited().await;
            *slot = None;
            let reason = complaint_since(&mut log, log_start).unwrap_or(how);
            // Left over: sessions that outlived their postmaster, or a postmaster whose server was
            // killed before the pid file was written.
            let is_left_over = ["shared memory block", PID_FILE].iter().any(|mark| reason.contains(mark));
            if !is_left_over || Instant::now() > deadline {
                let program = self.binaries.postgres.display();
                let reason = format!("{reason} (more in {})", self.data_dir.join(LOG).display());
                return Err(EmbeddedError::Failed { program: program.to_string(), reason });
            }
            sleep(POLL_EVERY * 5).await;
        }
    }

    fn launch(&self, log: &File) -> Result<tokio::process::Child, EmbeddedError> {
        let cannot_run = || io_error("run", &self.binaries.postgres);
        let output = log.try_clone().map_err(cannot_run())?;
        let errors = log.try_clone().map_err(cannot_run())?;
        let mut command = self.account.command(&self.binaries.postgres);
        command.arg("-D").arg(&self.pg_dir);
        let socket_dir = self.socket_dir.display();
        for setting in [
            "listen_addresses=".to_owned(),
            format!("port={}", socket::PORT),
            format!("unix_socket_directories={socket_dir}"),
            "unix_socket_permissions=0700".to_owned(),
            "logging_collector=off".to_owned(),
        ] {
            command.args(["-c", &setting]);
        }
        command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(cannot_run())
    }

    async fn write_settings(&self) -> Result<(), EmbeddedError> {
        // Prints the value only; an unsupported method is refused.
        let mut probe = self.account.command(&self.binaries.postgres);
        probe.arg("-D").arg(&self.pg_dir).args(["-c", "wal_compression=lz4", "-C", "wal_compression"]);
        let has_lz4 = probe.output().await.is_ok_and(|output| output.status.success());
        let settings = Machine::look(&self.pg_dir, has_lz4).settings();
        files::write_private(&self.pg_dir.join(SETTINGS), settings.as_bytes(), Some(&self.account))
    }

    /// Returns the log, and its length before this start.
    fn open_log(&self) -> Result<(File, u64), EmbeddedError> {
        let path = self.data_dir.join(LOG);
        if fs::metadata(&path).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
            fs::rename(&path, path.with_extension(OLD_LOG)).map_err(io_error("rename", &path))?;
        }
        let open = || -> io::Result<(File, u64)> {
            let log = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path)?;
            let length = log.metadata()?.len();
            Ok((log, length))
        };
        open().map_err(io_error("open", &path))
    }

    pub(super) async fn shorten_log(&self) -> io::Result<()> {
        let path = self.data_dir.join(LOG);
        if !fs::metadata(&path).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
            return Ok(());
        }
        tokio::task::spawn_blocking(move || shorten(&path)).await.map_err(io::Error::other)?
    }

    async fn wait_until_ready(&self, postmaster: &mut Postmaster) -> Result<Wait, EmbeddedError> {
        let mut deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut mention = Instant::now() + MENTION_EVERY;
        loop {
            if postmaster.has_exited() {
                return Ok(Wait::Exited);
            }
            let file = PidFile::find(&self.pg_dir).filter(|file| file.pid == postmaster.pid());
            let reason = match file {
                Some(PidFile { ready: true, socket_dir, .. }) => {
                    let socket_dir = socket_dir.as_deref().unwrap_or(&self.socket_dir);
                    match cluster::ping(&connect_options(socket_dir, &self.password, ADMIN_DATABASE)).await {
                        Ok(()) => return Ok(Wait::Ready),
                        Err(error) => error.to_string(),
                    }
                }
                Some(_) => {
                    deadline = Instant::now() + ANSWER_TIMEOUT;
                    "it is starting or stopping".to_owned()
                }
                None => "it has not begun".to_owned(),
            };
            if Instant::now() > deadline || reason.contains("password authentication failed") {
                let pid = postmaster.pid();
                return Err(EmbeddedError::NoAnswer { pid, pg_dir: self.pg_dir.clone(), reason });
            }
            if Instant::now() > mention {
                tracing::info!(postgres.pid = postmaster.pid(), "waiting for PostgreSQL: {reason}");
                mention = Instant::now() + MENTION_EVERY;
            }
            sleep(POLL_EVERY).await;
        }
    }

    /// Creates our database, on every start: the first one may have been killed before.
    pub(super) async fn ensure_database(&self) -> Result<(), EmbeddedError> {
        let wrap = |source| EmbeddedError::Database { pg_dir: self.pg_dir.clone(), source };
        cluster::ensure_database(&self.connect_options(ADMIN_DATABASE), DATABASE).await.map_err(wrap)
    }
}

/// Copies the end of a long log aside and truncates the log. A rename would not do, because
/// PostgreSQL keeps its file open. Lines logged in between are lost.
fn shorten(path: &Path) -> io::Result<()> {
    let mut log = OpenOptions::new().read(true).write(true).open(path)?;
    let length = log.seek(SeekFrom::End(0))?;
    log.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
    let old = path.with_extension(OLD_LOG);
    let mut old = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(old)?;
    let mut end = log.take(LOG_BYTES_MAX);
    io::copy(&mut end, &mut old)?;
    end.into_inner().set_len(0)
}

pub(super) fn connect_options(socket_dir: &Path, password: &str, database: &str) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(socket_dir)
        .port(socket::PORT)
        .username(OWNER)
        .password(password)
        .database(database)
        .ssl_mode(PgSslMode::Disable)
        .application_name("tenure")
}

fn find_version(pg_dir: &Path) -> Result<Option<String>, EmbeddedError> {
    let path = pg_dir.join(VERSION);
    match fs::read_to_string(&path) {
        Ok(version) => Ok(Some(version.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // An empty directory, such as a fresh volume, is no cluster.
            if fs::read_dir(pg_dir).is_ok_and(|mut entries| entries.next().is_some()) {
                let problem = "is not a PostgreSQL cluster; move it away";
                return Err(EmbeddedError::BadFile { path: pg_dir.to_owned(), problem });
            }
            Ok(None)
        }
        Err(source) => Err(EmbeddedError::Io { action: "read", path, source }),
    }
}

fn complaint_since(log: &mut File, start: u64) -> Option<String> {
    let mut text = String::new();
    log.seek(SeekFrom::Start(start)).ok()?;
    log.read_to_string(&mut text).ok()?;
    main_complaint(&text)
}

pub(super) fn main_complaint(text: &str) -> Option<String> {
    const MARKS: [&str; 4] = ["PANIC:  ", "FATAL:  ", "error: ", "ERROR:  "];
    let after_mark = |line: &str| MARKS.iter().find_map(|mark| Some(line.split_once(mark)?.1.to_owned()));
    // Clients that connect too early also get FATAL.
    let mut complaints = text.lines().filter(|line| !line.contains("the database system is")).filter_map(after_mark);
    if let Some(full) = complaints.clone().find(|line| line.contains("No space left on device")) {
        return Some(full);
    }
    // PostgreSQL's message for a partial write.
    if text.contains("Check free disk space") {
        return complaints.next().map(|line| format!("{line}; the disk is full"));
    }
    // Later errors mostly follow from the first.
    match complaints.next() {
        // The preceding line names the setting.
        Some(line) if line.contains("contains errors") => {
            let named = text.lines().find_map(|line| Some(line.split_once("LOG:  ")?.1));
            Some(named.map_or_else(|| line.clone(), |named| format!("{line}: {named}")))
        }
        Some(line) => Some(line),
        None => text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::main_complaint;

    #[test]
    fn error_line_is_picked_from_output() {
        for (text, line) in [
            (
                "running bootstrap ...\ninitdb: error: could not create directory: No space left on device\ninitdb: removing\n",
                "could not create directory: No space left on device",
            ),
            ("2026 [1] LOG:  starting\n2026 [1] FATAL:  lock file exists\n2026 [1] HINT:  look\n", "lock file exists"),
            (
                "ERROR:  could not extend file: No space left on device\nPANIC:  cannot abort\n",
                "could not extend file: No space left on device",
            ),
            ("FATAL:  first\nFATAL:  the database system is starting up\nPANIC:  second\n", "first"),
            (
                "2026 LOG:  invalid value for parameter \"jit\": \"x\"\n2026 FATAL:  configuration file \"f\" contains errors\n",
                "configuration file \"f\" contains errors: invalid value for parameter \"jit\": \"x\"",
            ),
            ("something else\n\n", "something else"),
        ] {
            assert_eq!(main_complaint(text).as_deref(), Some(line));
        }
        assert_eq!(main_complaint(""), None);
    }
}
