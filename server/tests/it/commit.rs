//! The commit id that the build compiles into a release.

use std::fs;
use std::path::Path;
use std::process::Command;

#[path = "../../build/commit.rs"]
mod find;

fn git(top: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(top)
        .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"])
        .args(args)
        .output()
        .expect("git is installed");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn commit_follows_the_checkout() {
    let folder = tempfile::TempDir::new().unwrap();
    let top = folder.path().join("top");
    fs::create_dir_all(top.join("inside")).unwrap();
    assert!(find::find(&top).is_none(), "no checkout");
    git(&top, &["init", "--quiet"]);
    assert!(find::find(&top).is_none(), "no commit");
    let commit = || git(&top, &["commit", "--quiet", "--allow-empty", "--message", "x"]);
    let look = |top: &Path| find::find(top).map(|found| (found.id, found.watched)).unwrap();
    let contents =
        |watched: &[std::path::PathBuf]| watched.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>();
    commit();
    let (first, watched) = look(&top);
    assert_eq!(first, git(&top, &["rev-parse", "HEAD"]));
    assert!(find::find(&top.join("inside")).is_none(), "not the top of the checkout");
    let before = contents(&watched);
    commit();
    let (second, watched) = look(&top);
    assert_ne!(second, first);
    assert_ne!(contents(&watched), before, "a build would not notice the commit");
    // Another worktree of the repository, with a detached HEAD.
    let other = folder.path().join("other");
    git(&top, &["worktree", "add", "--quiet", "--detach", other.to_str().unwrap(), &first]);
    let (there, watched) = look(&other);
    assert_eq!(there, first);
    assert!(!watched.is_empty() && watched.iter().all(|path| path.exists()));
}
