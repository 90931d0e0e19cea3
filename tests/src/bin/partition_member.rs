//! A member of a partition group, for `tests/tests/it/partitions.rs`. It works on the keys of its
//! share in turn, and prints a line for each piece of work that it did not lose: key, begin and end
//! in milliseconds since 1970.
//!
//!     partition_member GROUP NAME KEYS     works until SIGTERM, and then leaves

use std::io::Write as _;
use std::time::Duration;

use tenure_client::Client;
use tenure_client::partition::Member;
use tenure_tests::clock::unix_millis;
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: partition_member GROUP NAME KEYS";
const WORK: Duration = Duration::from_millis(5);

async fn work(member: &Member, keys: usize) -> std::io::Result<()> {
    loop {
        for key in 0..keys {
            let Some(hold) = member.hold(&key.to_string()) else { continue };
            let begin = unix_millis();
            tokio::time::sleep(WORK).await;
            if !hold.is_lost() {
                // In one write, which a kill cannot cut.
                let line = format!("{key} {begin} {}\n", unix_millis());
                std::io::stdout().write_all(line.as_bytes())?;
            }
        }
        tokio::time::sleep(WORK).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [group, name, keys] = &arguments[..] else { return Err(USAGE.into()) };
    let keys = keys.parse()?;
    let member = Member::join_as(&Client::from_env()?, group, name).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = work(&member, keys) => ended?,
        _ = terminate.recv() => {}
    }
    member.leave().await?;
    Ok(())
}
