//! Our files in the data directory: lock, password, secret key, root credentials.
//!
//! All are private (0600). All but the lock are written under a temporary name and renamed, so that
//! a crash leaves the whole file or none.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use super::account::Account;
use super::error::{EmbeddedError, io_error};
use tenure_api::credentials::AccessToken;
use tenure_store::secrets::SecretKeys;

const PG_DIR: &str = "pg";
const LOCK: &str = "lock";
const PASSWORD: &str = "pg-password";
const SECRET_KEY: &str = "secret-key";
const ROOT_CREDENTIALS: &str = "root-credentials.json";
/// Exists during a restore.
const RESTORING: &str = "restore-unfinished";

const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;
/// Lets the group of PostgreSQL's user pass, if the server is root.
const PASS_OF_GROUP: u32 = 0o010;
/// Mode of the parents that root creates, so that PostgreSQL's user can pass.
const WAY_OF_ROOT: u32 = 0o711;
/// Names with a leading dot are ignored.
const OUR_NAMES: [&str; 10] = [
    LOCK,
    PASSWORD,
    SECRET_KEY,
    ROOT_CREDENTIALS,
    RESTORING,
    PG_DIR,
    "run",
    "artifacts",
    "postgres.log",
    "postgres.log.old",
];
const UNFINISHED_CLUSTER: &str = "pg.unfinished-";
/// Part of a new file system.
const LOST_AND_FOUND: &str = "lost+found";

pub(super) fn pg_dir(data_dir: &Path) -> PathBuf {
    data_dir.join(PG_DIR)
}

/// Creates the data directory if missing, closes it to other users, and returns its absolute path
/// without symbolic links.
pub(super) fn make_data_dir(path: &Path) -> Result<PathBuf, EmbeddedError> {
    check_way(path)?;
    make_dir(path, PRIVATE_DIR).map_err(io_error("make the data directory", path))?;
    let path = fs::canonicalize(path).map_err(io_error("use the data directory", path))?;
    if let Err(error) = close(&path) {
        tracing::warn!(error = %error, "the data directory {} cannot be closed to other users", path.display());
    }
    Ok(path)
}

/// Checks that root's PostgreSQL can reach the data directory, before anything is created.
fn check_way(path: &Path) -> Result<(), EmbeddedError> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let account = Account::choose(&pg_dir(path))?;
    let absolute = std::path::absolute(path).map_err(io_error("use the data directory", path))?;
    let existing = absolute.ancestors().find_map(|ancestor| Some((ancestor, fs::canonicalize(ancestor).ok()?)));
    match existing {
        // `let_pass` may still open the data directory itself.
        Some((found, canonical)) if found == absolute => {
            account.check_can_enter(canonical.parent().unwrap_or(&canonical))
        }
        Some((_, canonical)) => account.check_can_enter(&canonical),
        None => Ok(()),
    }
}

/// Creates a directory and its parents if missing, ignoring the umask.
fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_dir(parent, if nix::unistd::geteuid().is_root() { WAY_OF_ROOT } else { PRIVATE_DIR })?;
    }
    match fs::DirBuilder::new().mode(PRIVATE_DIR).create(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Closes a data directory that an earlier release or the operator left open. A directory with
/// foreign entries keeps its mode, as it may be `/srv`; our files in it are private anyway.
fn close(data_dir: &Path) -> io::Result<()> {
    // Root's PostgreSQL may be running below it.
    let pass = if nix::unistd::geteuid().is_root() { PASS_OF_GROUP } else { 0 };
    let mode = fs::metadata(data_dir)?.mode() & 0o7777;
    let closed = mode & !(0o077 ^ pass);
    if closed == mode || !is_ours(data_dir)? {
        return Ok(());
    }
    fs::set_permissions(data_dir, fs::Permissions::from_mode(closed))
}

fn is_ours(data_dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(data_dir)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let known = OUR_NAMES.contains(&&*name) || name == LOST_AND_FOUND || name.starts_with(UNFINISHED_CLUSTER);
        if !known && !name.starts_with('.') {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Creates the data directory of a restore. Servers refuse it until [`end_restore`], so that a
/// killed restore is not taken for a small database.
pub fn begin_restore(data_dir: &Path) -> Result<(), EmbeddedError> {
    let path = make_data_dir(data_dir)?.join(RESTORING);
    write_private(&path, b"A restore began here. If it does not run any more, remove this directory.\n", None)
}

/// Call it when everything is written out.
pub fn end_restore(data_dir: &Path) -> Result<(), EmbeddedError> {
    let path = data_dir.join(RESTORING);
    fs::remove_file(&path).and_then(|()| sync_parent(&path)).map_err(io_error("remove", &path))
}

pub(super) fn check_restored(data_dir: &Path) -> Result<(), EmbeddedError> {
    if data_dir.join(RESTORING).exists() {
        let problem = "has an unfinished restore: remove the directory, and restore the backup again";
        return Err(EmbeddedError::BadFile { path: data_dir.to_owned(), problem });
    }
    Ok(())
}

/// Lets the group of PostgreSQL's user, and nobody else, pass through the data directory.
pub(super) fn let_pass(data_dir: &Path, account: &Account) -> Result<(), EmbeddedError> {
    let pass = || -> io::Result<()> {
        let metadata = fs::metadata(data_dir)?;
        if !account.is_other() || account.may_enter(&metadata) || !is_ours(data_dir)? {
            return Ok(());
        }
        chown(data_dir, None, Some(account.gid()))?;
        fs::set_permissions(data_dir, fs::Permissions::from_mode(metadata.mode() & 0o7777 | PASS_OF_GROUP))
    };
    pass().map_err(io_error("let PostgreSQL's user into", data_dir))
}

/// The right to start and stop this directory's PostgreSQL.
pub(super) struct DataDirLock(#[expect(dead_code, reason = "the lock lasts as long as the file is open")] File);

impl DataDirLock {
    /// Takes the lock, or fails with the pid of its holder.
    pub(super) fn take(data_dir: &Path) -> Result<Self, EmbeddedError> {
        let path = data_dir.join(LOCK);
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .mode(PRIVATE_FILE)
            .open(&path)
            .map_err(io_error("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = fs::read_to_string(&path).unwrap_or_default();
                let holder = if pid.trim().is_empty() { String::new() } else { format!(" (pid {})", pid.trim()) };
                return Err(EmbeddedError::InUse { data_dir: data_dir.to_owned(), holder });
            }
            Err(TryLockError::Error(source)) => return Err(EmbeddedError::Io { action: "lock", path, source }),
        }
        // Only for that message; the file lock alone decides.
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(io_error("write", &path))?;
        Ok(Self(file))
    }
}

/// Writes a file atomically, readable only by its owner.
pub(super) fn write_private(path: &Path, contents: &[u8], owner: Option<&Account>) -> Result<(), EmbeddedError> {
    let name = path.file_name().expect("every caller joins a name to a directory").to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}", random_hex(4)?));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(&temporary)?;
        file.write_all(contents)?;
        if let Some(owner) = owner {
            owner.give(&temporary)?;
        }
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_parent(path)
    };
    write().map_err(|source| {
        // Report the first error; a temporary file is harmless.
        let _ = fs::remove_file(&temporary);
        EmbeddedError::Io { action: "write", path: path.to_owned(), source }
    })
}

pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

pub(super) fn make_private_dir(path: &Path, owner: &Account) -> io::Result<()> {
    fs::DirBuilder::new().mode(PRIVATE_DIR).create(path)?;
    owner.give(path)
}

pub(super) fn random_hex(bytes: usize) -> Result<String, EmbeddedError> {
    let mut buffer = vec![0; bytes];
    fill_random(&mut buffer)?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn fill_random(buffer: &mut [u8]) -> Result<(), EmbeddedError> {
    getrandom::fill(buffer).map_err(|error| EmbeddedError::Failed {
        program: "the operating system's random source".to_owned(),
        reason: error.to_string(),
    })
}

pub(super) fn password_path(data_dir: &Path) -> PathBuf {
    data_dir.join(PASSWORD)
}

pub(super) fn find_password(data_dir: &Path) -> Result<Option<String>, EmbeddedError> {
    let path = password_path(data_dir);
    match fs::read_to_string(&path) {
        Ok(password) => Ok(Some(password.trim().to_owned()).filter(|password| !password.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(EmbeddedError::Io { action: "read", path, source }),
    }
}

pub(super) fn get_password(data_dir: &Path) -> Result<String, EmbeddedError> {
    find_password(data_dir)?.ok_or_else(|| EmbeddedError::BadFile {
        path: password_path(data_dir),
        problem: "is missing or empty, but there is a cluster that needs it; restore it from a backup",
    })
}

/// Returns the password for a new cluster. An existing one belongs to an interrupted first start.
pub(super) fn find_or_make_password(data_dir: &Path) -> Result<String, EmbeddedError> {
    if let Some(password) = find_password(data_dir)? {
        return Ok(password);
    }
    let password = random_hex(32)?;
    write_private(&password_path(data_dir), password.as_bytes(), None)?;
    Ok(password)
}

/// True if a server or command has ever used this data directory.
pub(super) fn has_lock(data_dir: &Path) -> bool {
    data_dir.join(LOCK).exists()
}

#[must_use]
pub fn secret_key_path(data_dir: &Path) -> PathBuf {
    data_dir.join(SECRET_KEY)
}

#[must_use]
pub fn root_credentials_path(data_dir: &Path) -> PathBuf {
    data_dir.join(ROOT_CREDENTIALS)
}

pub(super) fn find_secret_keys(data_dir: &Path) -> Result<Option<SecretKeys>, EmbeddedError> {
    let path = secret_key_path(data_dir);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(EmbeddedError::Io { action: "read", path, source }),
    };
    let problem =
        "does not hold base64 of 32 bytes; restore it from a backup, because stored tokens cannot be read without it";
    SecretKeys::parse(text.trim()).map(Some).map_err(|_| EmbeddedError::BadFile { path, problem })
}

/// Returns the secret keys, creating the file if missing. The caller holds the lock.
pub(super) fn read_or_make_secret_keys(data_dir: &Path) -> Result<SecretKeys, EmbeddedError> {
    if let Some(keys) = find_secret_keys(data_dir)? {
        return Ok(keys);
    }
    let text = SecretKeys::generate_setting();
    write_private(&secret_key_path(data_dir), format!("{text}\n").as_bytes(), None)?;
    Ok(SecretKeys::parse(&text).expect("a key that was just made is one"))
}

/// The client of the first start, in the format of its file.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RootCredentials<'a> {
    pub client_id: &'a str,
    pub access_token: &'a str,
    pub root_url: &'a str,
}

pub fn find_root_token(data_dir: &Path) -> Result<Option<AccessToken>, EmbeddedError> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Token {
        access_token: AccessToken,
    }
    let path = data_dir.join(ROOT_CREDENTIALS);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(EmbeddedError::Io { action: "read", path, source }),
    };
    let problem = "does not hold the root client's credentials; move it away and reset the client's token";
    let token: Token = serde_json::from_str(&text).map_err(|_| EmbeddedError::BadFile { path, problem })?;
    Ok(Some(token.access_token))
}

/// Writes `root-credentials.json` into the data directory, readable only by the server's user, and
/// returns its path.
pub fn write_root_credentials(data_dir: &Path, credentials: &RootCredentials<'_>) -> Result<PathBuf, EmbeddedError> {
    let path = make_data_dir(data_dir)?.join(ROOT_CREDENTIALS);
    let mut text = serde_json::to_vec_pretty(credentials).expect("three strings are always JSON");
    text.push(b'\n');
    write_private(&path, &text, None)?;
    Ok(path)
}

impl Account {
    pub(super) fn give(&self, path: &Path) -> io::Result<()> {
        if self.is_other() { chown(path, Some(self.uid()), Some(self.gid())) } else { Ok(()) }
    }
}
