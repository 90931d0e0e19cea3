//! A migration that is added has the crate compiled again: `sqlx::migrate!` notices changes of those that it knows only.

fn main() {
    println!("cargo::rerun-if-changed=../../migrations");
}
