//! Reports finished tasks and claims the next ones, in one request. Every lane creates as many
//! tasks as it takes, so a task is always available.

use super::Mode;
use crate::BenchError;
use crate::lane::{Claim, Lane};

pub(super) const CREATED_AT_ONCE: usize = 100;

/// Takes up to `LIMIT` tasks at once. With a limit of 1 createTask creates single tasks, otherwise
/// tasks are created by 100.
pub(crate) struct Work<const LIMIT: usize> {
    held: Vec<Claim>,
    ahead: usize,
}

impl<const LIMIT: usize> Mode for Work<LIMIT> {
    const STEPS: &'static [&'static str] = &["create", "work"];

    async fn prepare(_lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self { held: Vec::new(), ahead: 0 })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        if self.ahead < LIMIT {
            if LIMIT == 1 {
                lane.create(0).await?;
                self.ahead += 1;
            } else {
                lane.create_many(0, CREATED_AT_ONCE).await?;
                self.ahead += CREATED_AT_ONCE;
            }
        }
        // After a failure they are reported again, which is harmless.
        let (taken, claims) = lane.work(1, &self.held, LIMIT).await?;
        self.held = claims;
        self.ahead = self.ahead.saturating_sub(self.held.len());
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Bytes;
    use axum::http::Uri;
    use clap::Parser as _;
    use tokio::net::TcpListener;

    use crate::{BenchError, Settings, run};

    async fn refuse_results(uri: Uri, _: Bytes) -> String {
        let worked = r#"{"results":[{"error":{"code":"RequestConflict"}}],"tasks":[{"runId":0,
            "status":{"taskId":"f47ac10bTcKlZw4CssPUeQ"},"credentials":{"clientId":"c","accessToken":"t"}}]}"#;
        let answer = if uri.path().ends_with("/work") { worked } else { "{}" };
        answer.to_owned()
    }

    #[tokio::test]
    async fn a_result_that_is_refused_is_no_work() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(refuse_results)).await });
        let account = ["--root-url", &url, "--client-id", "c", "--access-token", "t"];
        let numbers = ["--connections", "2", "--seconds", "1", "--warmup", "0"];
        let settings = Settings::parse_from([&["tenure-bench", "work1"][..], &account, &numbers].concat());
        let Err(BenchError::Hopeless(what)) = run(&settings).await else { panic!("nothing was done") };
        assert_eq!(what, "a result was answered with \"RequestConflict\"");
    }
}
