//! The tasks that a server cannot do without.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use tokio_util::task::TaskTracker;

/// Starts one that lives as long as the server. If it panics, the process ends: requests would wait for it without end at a
/// server that looks healthy. What was acknowledged is in the database, and whatever runs the server starts it again.
pub fn spawn(tasks: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(async move {
        if AssertUnwindSafe(task).catch_unwind().await.is_err() {
            tracing::error!("a task that the server cannot do without has panicked; the process ends");
            std::process::abort();
        }
    });
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs one test of this program that is ignored otherwise, and says whether its process ended by a signal.
    fn is_aborted(test: &str) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        let mut command = Command::new(std::env::current_exe().unwrap());
        let ended = command.args(["--exact", "--ignored", test]).output().unwrap();
        ended.status.signal().is_some()
    }

    #[test]
    fn a_panic_ends_the_process_and_an_end_does_not() {
        assert!(is_aborted("essential::tests::panics"));
        assert!(!is_aborted("essential::tests::ends"));
    }

    #[tokio::test]
    #[ignore = "ends its process; another test runs it"]
    async fn panics() {
        spawn(&TaskTracker::new(), async { panic!("on purpose") });
        std::future::pending::<()>().await;
    }

    #[tokio::test]
    #[ignore = "another test runs it"]
    async fn ends() {
        let tasks = TaskTracker::new();
        spawn(&tasks, async {});
        tasks.close();
        tasks.wait().await;
    }
}
