//! The looks of the pass `admission` at its queues: some at the same time, so that their commits share flushes. One that lasts, because it
//! takes back what a lost scheduler has given out, or waits for a lock, holds up no other queue: meanwhile the others are listed again and
//! looked at. The pass ends when those have been looked at that it began with, and not before: a look that is dropped has to be undone
//! by the database.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tenure_store::admission::Listed;

use super::PassReport;
use super::admission::{AdmissionPass, look_at_queue};
use crate::engine::Engine;

/// So many queues are looked at at the same time. Fewer than the pool has connections.
const QUEUES_AT_ONCE: usize = 4;
/// How often the queues are listed again while a look lasts.
const LISTED_EVERY: Duration = Duration::from_millis(20);
/// For so long: a pass that goes on for a minute is cancelled.
const LISTED_FOR: Duration = Duration::from_secs(20);
/// A queue whose look has lasted for longer is left to the next pass: the end of this one would wait for another such look.
const LASTS_LONG: Duration = Duration::from_secs(1);

/// A queue, and what a look at it has done.
pub(super) type Looked = (i32, Result<PassReport, sqlx::Error>);

/// What is waited for.
enum Step {
    Looked(Looked),
    Listed(Result<Vec<Listed>, sqlx::Error>),
}

/// Looks at these queues, whatever fails, and at the others that have something to admit while a look lasts.
pub(super) async fn look_at_all(pass: &AdmissionPass, engine: &Engine, mut queues: Vec<Listed>) -> Vec<Looked> {
    let began = Instant::now();
    let mut first: HashSet<i32> = queues.iter().map(|listed| listed.queue).collect();
    let mut looks: HashMap<i32, Instant> = HashMap::new();
    let mut steps: FuturesUnordered<BoxFuture<'_, Step>> = FuturesUnordered::new();
    let (mut left, mut all, mut is_listing) = (HashSet::new(), Vec::new(), false);
    loop {
        let places = QUEUES_AT_ONCE.saturating_sub(looks.len()).min(queues.len());
        for listed in queues.drain(..places) {
            looks.insert(listed.queue, Instant::now());
            steps.push(look(engine, listed).boxed());
        }
        if looks.is_empty() {
            return all;
        }
        if !is_listing && queues.is_empty() && !first.is_empty() && began.elapsed() < LISTED_FOR {
            steps.push(list_later(pass, engine).boxed());
            is_listing = true;
        }
        match steps.next().await {
            Some(Step::Looked((queue, looked))) => {
                first.remove(&queue);
                let lasted = looks.remove(&queue).is_some_and(|begun| begun.elapsed() > LASTS_LONG);
                if lasted || looked.is_err() {
                    left.insert(queue);
                }
                all.push((queue, looked));
            }
            Some(Step::Listed(Ok(listed))) => {
                is_listing = false;
                queues = listed;
                queues.retain(|one| !looks.contains_key(&one.queue) && !left.contains(&one.queue));
            }
            // They are not listed again: the next pass says what is wrong.
            Some(Step::Listed(Err(_))) | None => {}
        }
    }
}

async fn look(engine: &Engine, listed: Listed) -> Step {
    Step::Looked((listed.queue, look_at_queue(engine, listed).await))
}

async fn list_later(pass: &AdmissionPass, engine: &Engine) -> Step {
    tokio::time::sleep(LISTED_EVERY).await;
    Step::Listed(pass.list_due(engine).await.map(|(queues, _)| queues))
}
