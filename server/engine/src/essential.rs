//! Tasks that live as long as the server. If one panics, the process ends.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use tokio_util::task::TaskTracker;

/// Spawns a task whose panic aborts the process. Otherwise requests would wait forever for it at a
/// server that looks healthy. Acknowledged data is in the database, and the supervisor restarts the
/// server.
pub fn spawn(tasks: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(async move {
        if AssertUnwindSafe(task).catch_unwind().await.is_err() {
            tracing::error!("an essential task of the server panicked; the process exits");
            std::process::abort();
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    /// Variable that tells the test's child process how the task ends.
    const DOES: &str = "TENURE_TEST_ESSENTIAL";

    #[tokio::test]
    async fn a_panic_ends_the_process_and_an_end_does_not() {
        if let Ok(does) = std::env::var(DOES) {
            let tasks = TaskTracker::new();
            spawn(&tasks, async move { assert_ne!(does, "panics") });
            tasks.close();
            return tasks.wait().await;
        }
        for (does, ends_by_signal) in [("panics", true), ("ends", false)] {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", "essential::tests::a_panic_ends_the_process_and_an_end_does_not"]).env(DOES, does);
            let ended = again.output().unwrap();
            assert_eq!(ended.status.signal().is_some(), ends_by_signal, "{does}: {ended:?}");
            assert_eq!(ended.status.success(), !ends_by_signal, "{does}: {ended:?}");
        }
    }
}
