//! Notes which commit a release is built from, for `/__version__`: the variable `TENURE_COMMIT`, or the checkout's.
//!
//! Builds for development name no commit unless the variable does, so that a commit does not compile everything again.

use std::path::Path;

#[path = "build/commit.rs"]
mod commit;

fn main() {
    println!("cargo::rerun-if-env-changed=TENURE_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/commit.rs");
    let given = std::env::var("TENURE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let releases = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let id = given.or_else(|| {
        let found = releases.then(|| commit::find(Path::new("..")))??;
        for path in found.watched {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        Some(found.id)
    });
    println!("cargo::rustc-env=TENURE_COMMIT={}", id.as_deref().unwrap_or("unknown"));
}
