//! The user of the commands.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

use super::guard::Ids;

/// The user that commands run as, if not the worker's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskUser {
    pub(super) name: String,
    pub(super) home: PathBuf,
    pub(super) ids: Ids,
}

impl TaskUser {
    /// Looks a user up. Only root may run commands as another user.
    ///
    /// # Errors
    /// The user does not exist or is root, or this process is not root.
    ///
    /// ```
    /// assert!(tenure_worker::TaskUser::find("no-such-user").is_err());
    /// ```
    pub fn find(name: &str) -> Result<Self, String> {
        let user = User::from_name(name).map_err(|error| format!("{name} cannot be looked up: {error}"))?;
        let user = user.ok_or_else(|| format!("there is no user {name}; make one, or name another"))?;
        if user.uid.is_root() {
            return Err(format!("{name} is root, which may do everything; name a user without rights"));
        }
        if !Uid::effective().is_root() {
            return Err("only root can run commands as another user; start the worker as root".to_owned());
        }
        let ids = Ids { uid: user.uid.as_raw(), gid: user.gid.as_raw() };
        Ok(Self { name: user.name, home: user.dir, ids })
    }

    /// Checks that this user can reach the directories of tasks.
    ///
    /// # Errors
    /// The user may not enter a directory.
    pub fn may_enter(&self, dir: &Path) -> Result<(), String> {
        let full = dir.canonicalize().map_err(|error| format!("{} cannot be read: {error}", dir.display()))?;
        for ancestor in full.ancestors() {
            let found =
                std::fs::metadata(ancestor).map_err(|e| format!("{} cannot be read: {e}", ancestor.display()))?;
            let bit = match (found.uid() == self.ids.uid, found.gid() == self.ids.gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            if found.mode() & bit == 0 {
                let (name, ancestor) = (&self.name, ancestor.display());
                return Err(format!(
                    "{name} may not enter {ancestor}; allow it (chmod o+x), or use another --work-dir"
                ));
            }
        }
        Ok(())
    }
}
