//! Producers create tasks one by one, and workers on other connections handle them. Producers wait
//! while the queue is long, so both run at one rate.

use std::rc::Rc;

use super::Mode;
use crate::BenchError;
use crate::lane::{Claim, Lane};
use crate::run::Run;

const CREATE: usize = 0;
const CLAIM: usize = 1;
const REPORT: usize = 2;
const WORK: usize = 1;

/// A producer or a worker. If `JOINED`, a worker reports a task and claims the next in one request.
pub(crate) struct Shift<const JOINED: bool> {
    held: Vec<Claim>,
}

impl<const JOINED: bool> Mode for Shift<JOINED> {
    const STEPS: &'static [&'static str] = if JOINED { &["create", "work"] } else { &["create", "claim", "report"] };

    async fn prepare(_lane: &mut Lane) -> Result<Self, BenchError> {
        Ok(Self { held: Vec::new() })
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<u64, BenchError> {
        if !lane.is_worker() {
            lane.run().wait_to_produce().await;
            if lane.run().is_open() {
                lane.run().begin_create();
                let created = lane.create(CREATE).await;
                lane.run().end_create();
                created?;
            }
            return Ok(0);
        }
        if JOINED {
            // After a failure they are reported again, which is harmless.
            let (taken, claims) = lane.work(WORK, &self.held, 1).await?;
            self.held = claims;
            return Ok(taken);
        }
        let claims = lane.claim(CLAIM, 1).await?;
        for claim in &claims {
            lane.complete(REPORT, claim).await?;
        }
        Ok(claims.len() as u64)
    }

    fn has_unfinished(&self, lane: &Lane) -> bool {
        lane.is_worker() && lane.run().has_unreported()
    }

    async fn finish(run: &Rc<Run>) -> Result<(), BenchError> {
        match run.unreported() {
            0 => Ok(()),
            lost => Err(BenchError::Lost(lost)),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Bytes;
    use clap::Parser as _;
    use tokio::net::TcpListener;

    use crate::{BenchError, Settings, run};

    async fn give_no_task(_: Bytes) -> &'static str {
        r#"{"tasks":[],"results":[]}"#
    }

    #[tokio::test]
    async fn task_without_report_is_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(give_no_task)).await });
        let account = ["--root-url", &url, "--client-id", "c", "--access-token", "t"];
        let numbers = ["--workers", "2", "--seconds", "1", "--warmup", "0"];
        let settings = Settings::parse_from([&["tenure-bench", "shift"][..], &account, &numbers].concat());
        let Err(BenchError::Lost(lost)) = run(&settings).await else { panic!("no task was reported") };
        assert!(lost > 0);
    }
}
