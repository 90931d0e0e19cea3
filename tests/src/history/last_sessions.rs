//! The last sessions of a storm, when its actors have stopped and the clock moves only as it is moved here: each queue has some that
//! end with runs in hand, whose claims would be good for a while longer. And what the server says of all sessions then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure_api::sessions::Session;

use super::member::{Member, Membership};
use super::sessions::{Shown, ShownSessions};
use super::storm::{advance_clock, until_answered};
use super::world::{Actor, World};
use crate::http::TENURE_API;

/// The numbers of the workers: of one that ends its session, one that is taken over, and one that falls silent.
const LAST: [usize; 3] = [30, 31, 32];
/// The shortest that a session may have: far less than the term of a claim.
const TTL: i64 = 15;
/// Of one that is not to expire meanwhile.
const LONGER: i64 = 300;
/// So often a session that is silent may be extended, because no server was looking.
const EXPIRES_WITHIN: usize = 8;
/// What is committed in the name of a session after its end is given back five times a second. It gets this part of the time in which
/// all must be quiet, ten seconds: far less than its claims are good for.
const STRAYS_SHARE: u32 = 30;
const LOOK: Duration = Duration::from_millis(100);
/// More than any session has, in seconds.
const LONG: u64 = 3_601;

/// Plays them, in all queues at once: the answer that a queue is empty takes a second.
pub(super) async fn play(world: &Arc<World>) {
    let mut queues = join_all((0..world.queues.len()).map(|queue| Last::begin(world, queue))).await;
    // A session is not taken over in its first second, by the same clock.
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

/// The last ones of a queue.
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
            // The others would wait there in vain.
            return Self { members, is_taken_over: false, silent: None };
        };
        closes.leave(&mut mine).await;
        let is_taken_over = claimed(is_taken_over, queue, LONGER).await.is_some();
        let silent = claimed(falls_silent, queue, TTL).await;
        Self { members, is_taken_over, silent }
    }
}

/// A session that has claimed something, if there is something.
async fn claimed(member: &mut Member, queue: usize, ttl: i64) -> Option<Membership> {
    let mut mine = member.begin_for(queue, true, ttl).await?;
    member.claim(&mut mine, 2).await;
    mine.holds_some().then_some(mine)
}

/// What is said of all sessions, once those that have ended hold nothing any more, or after some time.
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

/// Lets all of them expire.
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
        // One whose beginning was lost with the end of the log is not there.
        let path = format!("{TENURE_API}/sessions/{session}");
        if let Some(body) = until_answered(&mut reader, "GET", &path, None).await {
            let read: Session = serde_json::from_value(body).expect("a session is answered in its form");
            all.insert(session, Shown::from(read));
        }
    }
    all
}
