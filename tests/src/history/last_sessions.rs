//! The last sessions of a storm, after its actors have stopped, when only this module moves the
//! clock. In each queue some sessions end while they hold runs whose claims would last longer. Then
//! it reads all sessions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_api::sessions::Session;

use super::member::{Member, Membership};
use super::sessions::{Shown, ShownSessions};
use super::storm::{advance_clock, until_answered};
use super::world::{Actor, World};
use crate::http::TENURE_API;

/// Worker numbers: one ends its session, one is taken over, one falls silent.
const LAST: [usize; 3] = [30, 31, 32];
/// Shortest session TTL, in seconds: far less than a claim's term.
const TTL: i64 = 15;
const LONGER: i64 = 300;
/// How often a silent session may be extended because no server was checking.
const EXPIRES_WITHIN: usize = 8;
/// Claims committed for a session after its end are returned five times a second. They get this
/// fraction of the quiet time, that is ten seconds: far less than a claim's term.
const STRAYS_SHARE: u32 = 30;
const LOOK: Duration = Duration::from_millis(100);
const LONG: u64 = 3_601;

/// Runs the last sessions, in all queues at once: an answer from an empty queue takes a second.
pub(super) async fn play(world: &Arc<World>) {
    let mut queues = join_all((0..world.queues.len()).map(|queue| Last::begin(world, queue))).await;
    // A session cannot be taken over within its first second, by the same clock.
    let mut clock = Actor::patient(Arc::clone(world), 540);
    advance_clock(&mut clock, TTL.unsigned_abs() + 1).await;
    for (queue, last) in queues.iter_mut().enumerate() {
        if last.is_taken_over {
            last.members[1].begin_for(queue, true, LONGER).await;
        }
        if let Some(mine) = &last.silent {
            last.members[2].renew(mine).await;
        }
    }
}

struct Last {
    members: [Member; 3],
    is_taken_over: bool,
    silent: Option<Membership>,
}

impl Last {
    async fn begin(world: &Arc<World>, queue: usize) -> Self {
        let actor = |number: usize| Actor::patient(Arc::clone(world), 500 + (10 * queue + number) as u64);
        let mut members = LAST.map(|number| Member::new(actor(number), number));
        let [closes, is_taken_over, falls_silent] = &mut members;
        let Some(mut mine) = claimed(closes, queue, TTL).await else {
            // The queue is empty: the others would get no run either.
            return Self { members, is_taken_over: false, silent: None };
        };
        closes.leave(&mut mine).await;
        let is_taken_over = claimed(is_taken_over, queue, LONGER).await.is_some();
        let silent = claimed(falls_silent, queue, TTL).await;
        Self { members, is_taken_over, silent }
    }
}

async fn claimed(member: &mut Member, queue: usize, ttl: i64) -> Option<Membership> {
    let mut mine = member.begin_for(queue, true, ttl).await?;
    member.claim(&mut mine, 2).await;
    mine.holds_some().then_some(mine)
}

/// Reads all sessions, once ended ones hold no runs or the time is up.
pub(super) async fn read(world: &Arc<World>, limit: Duration) -> ShownSessions {
    let deadline = Instant::now() + limit / STRAYS_SHARE;
    loop {
        let shown = look(world).await;
        let left = shown.values().any(|shown| shown.ended.is_some() && shown.running > 0);
        if !left || Instant::now() > deadline {
            return shown;
        }
        tokio::time::sleep(LOOK).await;
    }
}

pub(super) async fn let_expire(world: &Arc<World>, limit: Duration) -> ShownSessions {
    let mut clock = Actor::patient(Arc::clone(world), 541);
    for _ in 0..EXPIRES_WITHIN {
        advance_clock(&mut clock, LONG).await;
        if look(world).await.values().all(|shown| shown.ended.is_some()) {
            break;
        }
    }
    read(world, limit).await
}

async fn look(world: &Arc<World>) -> ShownSessions {
    let mut reader = Actor::patient(Arc::clone(world), 542);
    let mut all = ShownSessions::new();
    for session in world.sessions() {
        // The start of the session may have been lost with the end of the log.
        let path = format!("{TENURE_API}/sessions/{session}");
        if let Some(body) = until_answered(&mut reader, "GET", &path, None).await {
            let read: Session = serde_json::from_value(body).expect("a session is answered in its form");
            all.insert(session, Shown::from(read));
        }
    }
    all
}
