//! The user that runs PostgreSQL, which refuses root: the server's own, or another one if that is
//! root.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::{Uid, User, getegid, geteuid};
use tokio::process::Command;

use super::error::{EmbeddedError, io_error};

const POSTGRES: &str = "postgres";
const NOBODY: &str = "nobody";

#[derive(Clone, Debug)]
pub(super) struct Account {
    name: String,
    uid: u32,
    gid: u32,
    /// True if not the server's user.
    other: bool,
}

impl Account {
    /// Returns the owner of an existing cluster; otherwise the server's user, or for root
    /// `postgres` or `nobody`.
    pub(super) fn choose(pg_dir: &Path) -> Result<Self, EmbeddedError> {
        let owner = match fs::metadata(pg_dir) {
            Ok(metadata) => Some(metadata),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
            Err(error) => return Err(io_error("look at", pg_dir)(error)),
        };
        let us = geteuid();
        if !us.is_root() {
            if let Some(owner) = owner.filter(|owner| owner.uid() != us.as_raw()) {
                return Err(EmbeddedError::ForeignOwner { path: pg_dir.to_owned(), owner: owner.uid() });
            }
            return Ok(Self { name: name_of(us), uid: us.as_raw(), gid: getegid().as_raw(), other: false });
        }
        if let Some(owner) = owner.filter(|owner| owner.uid() != 0) {
            let uid = Uid::from_raw(owner.uid());
            return Ok(Self { name: name_of(uid), uid: owner.uid(), gid: owner.gid(), other: true });
        }
        find_user(POSTGRES).or_else(|| find_user(NOBODY)).ok_or(EmbeddedError::NoAccount)
    }

    pub(super) fn warn_if_shared(&self) {
        if self.other && self.name == NOBODY {
            tracing::warn!(
                "there is no user postgres, so PostgreSQL runs as nobody: other programs of that user can read the data"
            );
        }
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    pub(super) fn gid(&self) -> u32 {
        self.gid
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// True if not the server's user: files must change their owner.
    pub(super) fn is_other(&self) -> bool {
        self.other
    }

    /// Returns a command that runs as this user. Its own process group shields PostgreSQL, which
    /// the server needs while it drains, from a Ctrl-C. Its environment is cleared, because
    /// `PGDATA` and similar variables would change its effect.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/").env_clear().env("LC_ALL", "C").process_group(0);
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        if self.other {
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    pub(super) fn may_enter(&self, directory: &fs::Metadata) -> bool {
        let needed = if directory.uid() == self.uid {
            0o100
        } else if directory.gid() == self.gid {
            0o010
        } else {
            0o001
        };
        directory.mode() & needed != 0
    }

    /// Fails with the first ancestor of the absolute `path` that this user may not enter by its
    /// permission bits.
    pub(super) fn check_can_enter(&self, path: &Path) -> Result<(), EmbeddedError> {
        if !self.other {
            return Ok(());
        }
        let mut ancestors: Vec<&Path> = path.ancestors().collect();
        ancestors.reverse();
        for directory in ancestors {
            let metadata = fs::metadata(directory).map_err(io_error("look at", directory))?;
            if !self.may_enter(&metadata) {
                return Err(EmbeddedError::CannotEnter { user: self.name.clone(), directory: directory.to_owned() });
            }
        }
        Ok(())
    }
}

fn find_user(name: &str) -> Option<Account> {
    let user = User::from_name(name).ok().flatten().filter(|user| !user.uid.is_root())?;
    Some(Account { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw(), other: true })
}

fn name_of(uid: Uid) -> String {
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}
