//! Where a private cluster lives.

use std::path::PathBuf;

/// Where the cluster lives and what runs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmbeddedSettings {
    /// Made when it is missing.
    pub data_dir: PathBuf,
    /// Folder of `postgres` and `initdb`; None looks for them.
    pub pg_bin: Option<PathBuf>,
}
