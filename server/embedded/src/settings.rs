//! Settings of a private cluster.

use std::path::PathBuf;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmbeddedSettings {
    /// Created if missing.
    pub data_dir: PathBuf,
    /// Folder of `postgres` and `initdb`; none to search for them.
    pub pg_bin: Option<PathBuf>,
}
