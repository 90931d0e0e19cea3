//! Workers that wait for work in empty queues during a measurement.

use std::time::Duration;

use tenure_api::credentials::Credentials;
use tenure_driver::http::{Client, QUEUE_API};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::contestant::Contestant;
use crate::BenchError;

const QUEUES: usize = 50;
const REST: Duration = Duration::from_secs(1);
const OK: u16 = 200;

/// Makes `workers` workers wait until the set is dropped. All have sent their request when this
/// returns.
pub(super) async fn park(contestant: &Contestant, workers: usize) -> Result<JoinSet<()>, BenchError> {
    let account = contestant.account()?;
    let mut parked = JoinSet::new();
    for number in 0..workers {
        let mut client = Client::new(&account.root_url)?;
        let credentials = account.credentials.clone();
        ask(&mut client, &credentials, number).await?;
        parked.spawn_local(async move {
            loop {
                // A shed worker also pauses: an immediate retry would add load to the measurement.
                if !client.finish().await.is_ok_and(|reply| reply.status == OK) {
                    sleep(REST).await;
                }
                // The next turn waits for the answer, or pauses.
                drop(ask(&mut client, &credentials, number).await);
            }
        });
    }
    Ok(parked)
}

async fn ask(client: &mut Client, credentials: &Credentials, number: usize) -> Result<(), BenchError> {
    let path = format!("{QUEUE_API}/claim-work/bench%2Fparked-{}", number % QUEUES);
    let body = format!(r#"{{"workerGroup":"bench","workerId":"parked-{number}","tasks":1}}"#);
    Ok(client.start(credentials, "POST", &path, Some(body.as_bytes())).await?)
}
