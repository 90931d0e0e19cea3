//! Row Z8: a run ends with its result or not at all, even if the server is killed meanwhile.

use std::time::{Duration, Instant};

use super::*;
use crate::rig::client_of;

const ROUNDS: usize = 6;
const TASKS: u16 = 32;

const TORN: &str =
    "SELECT (SELECT count(*) FROM runs r LEFT JOIN results x ON x.seq = r.seq AND x.run = r.run WHERE x.seq IS NULL)
                         + (SELECT count(*) FROM results x LEFT JOIN runs r ON r.seq = x.seq AND r.run = x.run
                            WHERE r.state IS DISTINCT FROM 3)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z8_run_and_result_are_stored_together() {
    let mut rig = Rig::start().await;
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        create(&rig, TASKS.into()).await;
        let claims = claim_as(&rig, "w1", TASKS).await;
        let before = number(&rig, "SELECT count(*) FROM results").await;
        let reports: Vec<_> = claims
            .iter()
            .map(|claim| {
                let (mut client, path) = (client_of(&rig.server), format!("/api/queue/v1{}/completed", run_of(claim)));
                let (who, body) = (credentials_of(claim), json!({"result": {"of": path}}).to_string());
                tokio::spawn(async move {
                    let answer = client.call(&who, "POST", &path, Some(body.as_bytes())).await;
                    answer.is_ok_and(|answer| answer.status == 200)
                })
            })
            .collect();
        let part = i64::try_from(round).unwrap();
        let stored = "SELECT count(*) FROM results";
        let until = Instant::now() + Duration::from_secs(10);
        while number(&rig, stored).await < before + part && Instant::now() < until {}
        rig.server.kill().unwrap();
        for report in reports {
            acknowledged += i64::from(report.await.unwrap());
        }
        rig.server = rig.another(&format!("round {round}")).await;
        assert_eq!(number(&rig, TORN).await, 0, "after round {round}");
        assert!(number(&rig, stored).await >= acknowledged, "acknowledged results are stored");
        for claim in &claims {
            let path = format!("{}/completed", run_of(claim));
            let body = json!({"result": {"of": format!("/api/queue/v1{path}")}});
            let answer = call(&mut client_of(&rig.server), &credentials_of(claim), "POST", &path, Some(&body)).await;
            assert_eq!((answer.status, &answer.body["status"]["state"]), (200, &json!("completed")), "{}", answer.body);
        }
        let all = i64::try_from(round + 1).unwrap() * i64::from(TASKS);
        acknowledged = all;
        assert_eq!((number(&rig, stored).await, number(&rig, TORN).await), (all, 0));
    }
}
