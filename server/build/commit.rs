//! Which commit a checkout is at.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A commit, and the files that change when another one is checked out or made.
pub struct Commit {
    /// Its hash.
    pub id: String,
    /// Those of them that exist: a build that watches a missing file is never up to date.
    pub watched: Vec<PathBuf>,
}

/// The commit of the checkout whose top is this folder; none outside one, or without git.
pub fn find(top: &Path) -> Option<Commit> {
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(top).args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    // Sources that were unpacked into another project's checkout are none of its commits.
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != top.canonicalize().ok()? {
        return None;
    }
    let id = git(&["rev-parse", "--verify", "HEAD"])?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref());
    let paths = names.filter_map(|name| git(&["rev-parse", "--git-path", name]));
    let watched = paths.map(|path| top.join(path)).filter(|path| path.exists()).collect();
    Some(Commit { id, watched })
}
