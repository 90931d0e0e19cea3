//! Partition groups: processes divide work among themselves, each with its share.
//!
//! A [`Member`] keeps its share by a call per interval in the background. Work is anything with a
//! key: [`Member::hold`] tells whether the key is in the share, and keeps it from other members
//! until the [`Hold`] is dropped. When members come or go, shares move only after the members that
//! lose keys have dropped their holds.
//!
//! Nothing outside the process is fenced: a process that was frozen, or whose clock stood still, may
//! go on for a moment although its share was given away. Look at [`Hold::is_lost`] before each step
//! that must not be done twice.

mod incr;
mod share;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_api::ids::TaskId;
use tenure_api::partitions::{SLOTS, Tick, slot_of_id, slot_of_key};
use tenure_api::states::PartitionState;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::share::{Shares, interval};
use crate::client::{Answer, Call, Own, TENURE_API, TIMEOUT, parameter};
use crate::error::chain;
use crate::partitions::of_partition;
use crate::{Client, Error};

pub use self::incr::Incr;
pub use self::share::Share;

/// A new member calls more often for its first intervals, so that its share comes in time.
const CALLS_PER_INTERVAL: u32 = 4;
const NEW_FOR: u32 = 3 * CALLS_PER_INTERVAL;
/// Pause after a failed call, and between calls while a map waits for acknowledgements.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// In larger groups members call less often while they wait: pause per share.
const PAUSE_PER_SHARE: Duration = Duration::from_millis(20);
const CALL_MIN: Duration = Duration::from_secs(1);

/// A member of a partition group. It calls the server in the background until it is dropped or
/// leaves.
///
/// ```no_run
/// # async fn customers() -> Vec<String> { Vec::new() }
/// # async fn send_mail(_: &str) {}
/// use tenure_client::partition::Member;
///
/// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
/// let member = Member::join(client, "mail").await?;
/// loop {
///     for customer in customers().await {
///         if let Some(_hold) = member.hold(&customer) {
///             send_mail(&customer).await;
///         }
///     }
/// }
/// # }
/// ```
pub struct Member {
    shared: Arc<Shared>,
    client: Client,
    group: String,
    name: String,
    changes: watch::Receiver<Shown>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

/// The share, and the number of the next map while the group drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Shown {
    share: Option<Share>,
    proposal: Option<i64>,
}

#[derive(Debug, Default)]
struct Shared {
    shares: Mutex<Shares>,
    /// A call is worth it now.
    call: Notify,
    /// Work has ended.
    released: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work in progress with a key of the share. While it exists, no other member gets the key.
///
/// ```no_run
/// # async fn send(_email: &str) {}
/// # async fn example(member: &tenure_client::partition::Member, emails: &[String]) {
/// if let Some(hold) = member.hold("customer 7") {
///     for email in emails {
///         if hold.is_lost() {
///             break;
///         }
///         send(email).await;
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the key is free for other members once this is dropped"]
pub struct Hold {
    shared: Arc<Shared>,
    slot: u32,
    since: u64,
}

impl Hold {
    /// True if another member may have the key by now: the server was out of reach for too long, or
    /// gave the share away after the group's `drainTimeout`. Then stop.
    ///
    /// ```no_run
    /// # fn example(hold: &tenure_client::partition::Hold) {
    /// if hold.is_lost() {
    ///     return; // leave the rest to the next member
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.shared.lock().is_lost(self.slot, self.since, Instant::now())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.shared.lock().release(self.slot) {
            self.shared.call.notify_one();
        }
        self.shared.released.notify_waiters();
    }
}

/// A call for work in progress. While it exists, the member acknowledges no map that it did not
/// know.
pub(crate) struct Claiming {
    shared: Arc<Shared>,
    key: u64,
}

impl Claiming {
    /// Holds a run that the call has returned, until its job has ended.
    pub(crate) fn hold(&self, id: TaskId) -> Hold {
        let slot = slot_of_id(id.uuid());
        let since = self.shared.lock().hold_claimed(slot);
        Hold { shared: Arc::clone(&self.shared), slot, since }
    }

    /// Asks for the current map at once: the known one is no longer active.
    pub(crate) fn refresh(&self) {
        self.shared.call.notify_one();
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        if self.shared.lock().end_claim(self.key) {
            self.shared.call.notify_one();
        }
        self.shared.released.notify_waiters();
    }
}

impl Member {
    /// Joins a group under a random name. The first share comes within two intervals.
    ///
    /// # Errors
    /// There is no such group (404), or it has 1,000 members (409).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let mut member = tenure_client::partition::Member::join(client, "mail").await?;
    /// println!("{:?}", member.wait_for_share().await);
    /// # Ok(()) }
    /// ```
    pub async fn join(client: &Client, group: &str) -> Result<Self, Error> {
        Self::join_as(client, group, &crate::enqueue::random_key()).await
    }

    /// Joins a group under a name of its own, such as the name of the host. Two processes with one name
    /// would work on the same share. A process that is started again within two intervals gets its
    /// former share.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    ///
    /// ```no_run
    /// # async fn example(client: &tenure_client::Client) -> Result<(), tenure_client::Error> {
    /// let member = tenure_client::partition::Member::join_as(client, "mail", "sender-1").await?;
    /// # drop(member);
    /// # Ok(()) }
    /// ```
    pub async fn join_as(client: &Client, group: &str, name: &str) -> Result<Self, Error> {
        let shared = Arc::new(Shared::default());
        let call = call_of(group, name, None, TIMEOUT);
        let answer: Answer<Tick> = client.call(&call).await?;
        let (publish, changes) = watch::channel(Shown::default());
        let stop = CancellationToken::new();
        let ticker = Ticker {
            client: client.once(),
            group: group.to_owned(),
            name: name.to_owned(),
            shared: Arc::clone(&shared),
            publish,
            waited: 0,
        };
        let task = tokio::spawn(ticker.run(answer, stop.clone()));
        let (group, name) = (group.to_owned(), name.to_owned());
        Ok(Self { shared, client: client.clone(), group, name, changes, stop, task: Some(task) })
    }

    /// Returns the current share, for example to select keys in a database. Call
    /// [`hold`](Self::hold) for each key before its work: while the group changes, some keys of the
    /// share must wait.
    ///
    /// ```no_run
    /// # fn example(member: &tenure_client::partition::Member) {
    /// if let Some(share) = member.share() {
    ///     println!("share {} of {}", share.index, share.replicas);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn share(&self) -> Option<Share> {
        self.shared.lock().share(Instant::now())
    }

    /// Waits until the member has a share.
    ///
    /// ```no_run
    /// # async fn example(member: &mut tenure_client::partition::Member) {
    /// println!("index {}", member.wait_for_share().await.index);
    /// # }
    /// ```
    pub async fn wait_for_share(&mut self) -> Share {
        loop {
            if let Some(share) = self.share() {
                return share;
            }
            self.wait_for_change().await;
        }
    }

    /// Waits until the share is another one, or is lost or regained.
    ///
    /// ```no_run
    /// # async fn example(member: &mut tenure_client::partition::Member) {
    /// println!("now {:?}", member.changed().await);
    /// # }
    /// ```
    pub async fn changed(&mut self) -> Option<Share> {
        let before = self.changes.borrow_and_update().share;
        loop {
            self.wait_for_change().await;
            let share = self.changes.borrow_and_update().share;
            if share != before {
                return share;
            }
        }
    }

    async fn wait_for_change(&mut self) {
        if self.changes.changed().await.is_err() {
            // The task has panicked: there will be no share.
            std::future::pending::<()>().await;
        }
    }

    /// Begins work on a key, unless it is not in the share or about to move to another member.
    ///
    /// ```no_run
    /// # fn example(member: &tenure_client::partition::Member) {
    /// if let Some(hold) = member.hold("ada@example.com") {
    ///     // work on it
    ///     drop(hold);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn hold(&self, key: &str) -> Option<Hold> {
        self.hold_slot(slot_of_key(key))
    }

    /// Like [`hold`](Self::hold), for a task.
    ///
    /// ```no_run
    /// # fn example(member: &tenure_client::partition::Member, task: tenure_client::TaskId) {
    /// let hold = member.hold_task(task);
    /// # drop(hold);
    /// # }
    /// ```
    #[must_use]
    pub fn hold_task(&self, id: TaskId) -> Option<Hold> {
        self.hold_slot(slot_of_id(id.uuid()))
    }

    fn hold_slot(&self, slot: u32) -> Option<Hold> {
        let since = self.shared.lock().hold(slot, Instant::now())?;
        Some(Hold { shared: Arc::clone(&self.shared), slot, since })
    }

    /// Begins a call for work of the current share.
    pub(crate) fn begin_claim(&self) -> Option<(Share, Claiming)> {
        let (share, key) = self.shared.lock().begin_claim(Instant::now())?;
        Some((share, Claiming { shared: Arc::clone(&self.shared), key }))
    }

    /// Waits from now on until the share or the next map is another one.
    pub(crate) fn until_changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.changes.clone();
        let known = *changes.borrow_and_update();
        async move {
            if changes.wait_for(|shown| *shown != known).await.is_err() {
                // The task has panicked.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Leaves the group once all holds are dropped, so that others get the share at once. A member
    /// that is dropped without leaving is missed for up to two intervals.
    ///
    /// ```no_run
    /// # async fn example(member: tenure_client::partition::Member) -> Result<(), tenure_client::Error> {
    /// member.leave().await?;
    /// # Ok(()) }
    /// ```
    pub async fn leave(mut self) -> Result<(), Error> {
        loop {
            let released = self.shared.released.notified();
            if self.shared.lock().leave() {
                break;
            }
            released.await;
        }
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            // Fails only if the task panicked; then it calls no more either.
            let _ended = task.await;
        }
        let path = of_partition(&self.group, &format!("/members/{}", parameter(&self.name)));
        self.client.own(Method::DELETE, path, None).await.map(drop)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("group", &self.group).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn call_of(group: &str, name: &str, acked: Option<i64>, timeout: Duration) -> Call {
    let mut body: Value = json!({ "memberId": name });
    if let Some(acked) = acked {
        body["acked"] = acked.into();
    }
    Call {
        method: Method::POST,
        path: of_partition(group, "/tick"),
        body: Some(body.to_string().into_bytes()),
        timeout,
        own: Own { api: Some(TENURE_API), ..Own::default() },
    }
}

struct Ticker {
    client: Client,
    group: String,
    name: String,
    shared: Arc<Shared>,
    publish: watch::Sender<Shown>,
    /// Calls in a row without a share.
    waited: u32,
}

impl Ticker {
    async fn run(mut self, first: Answer<Tick>, stop: CancellationToken) {
        let length = interval(&first.value);
        let mut pause = self.take(&first);
        let mut failing = false;
        loop {
            let woken = async {
                tokio::select! {
                    () = self.shared.call.notified() => {}
                    () = tokio::time::sleep(pause) => {}
                }
                self.publish_end();
                let acked = self.shared.lock().acked();
                let call = call_of(&self.group, &self.name, acked, (length / 2).max(CALL_MIN));
                self.client.call::<Tick>(&call).await
            };
            let Some(answer) = stop.run_until_cancelled(woken).await else { return };
            pause = match answer {
                Ok(answer) => {
                    failing = false;
                    self.take(&answer)
                }
                Err(error) => {
                    if !failing {
                        warning!(
                            partition = self.group,
                            error = chain(&error),
                            "a member of a partition group cannot reach its server; it stops in time"
                        );
                    }
                    failing = true;
                    (length / 8).min(PAUSE_MAX)
                }
            };
        }
    }

    /// Takes in an answer, and returns how long to wait until the next call.
    fn take(&mut self, answer: &Answer<Tick>) -> Duration {
        let now = Instant::now();
        let shown = {
            let mut shares = self.shared.lock();
            shares.take(&answer.value, answer.sent, now);
            Shown { share: shares.share(now), proposal: shares.proposal() }
        };
        self.show(shown);
        self.waited = if shown.share.is_some() { 0 } else { self.waited.saturating_add(1) };
        pause_after(&answer.value, self.waited, phase(&self.name))
    }

    /// Publishes that the share has ended, if it has.
    fn publish_end(&self) {
        let share = self.shared.lock().share(Instant::now());
        if share.is_none() {
            self.show(Shown::default());
        }
    }

    fn show(&self, now: Shown) {
        self.publish.send_if_modified(|shown| std::mem::replace(shown, now) != now);
    }
}

/// Fraction of the interval at which a member calls: early, so that a failed call can be repeated,
/// and not for all members the same.
fn phase(name: &str) -> f64 {
    0.05 + 0.1 * f64::from(slot_of_key(name)) / f64::from(SLOTS)
}

fn pause_after(tick: &Tick, waited: u32, phase: f64) -> Duration {
    let length = interval(tick);
    let often = length / CALLS_PER_INTERVAL;
    if tick.next.is_some() {
        return often.min(PAUSE_MAX).max(PAUSE_PER_SHARE * u32::from(tick.replicas.unwrap_or(1))).min(length);
    }
    if tick.state == PartitionState::Waiting && waited < NEW_FOR {
        return often;
    }
    let server_time = tick.server_time.time().timestamp_millis();
    let begins = tick.number.saturating_add(1).saturating_mul(tick.interval).saturating_mul(1_000);
    let left = u64::try_from(begins.saturating_sub(server_time)).unwrap_or(0);
    // A clock that goes back must not make the pause longer than an interval.
    (Duration::from_millis(left) + length.mul_f64(phase)).clamp(length / 8, length + length / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(state: &str, next: bool, server_time: &str) -> Tick {
        let next = next.then(|| json!({"index": 0, "replicas": 2, "epoch": 3}));
        let answer = json!({"state": state, "index": 0, "replicas": 80, "next": next, "epoch": 2, "number": 100,
            "interval": 10, "serverTime": server_time});
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn member_calls_early_in_next_interval() {
        let at = "1970-01-01T00:16:47.000Z";
        let pause = pause_after(&tick("active", false, at), 0, 0.1);
        assert_eq!(pause, Duration::from_secs(4));
        for name in ["a", "b", "sender-1"] {
            assert!((0.05..0.15).contains(&phase(name)), "{name}");
        }
        let late = pause_after(&tick("active", false, "1970-01-01T01:00:00.000Z"), 0, 0.0);
        let early = pause_after(&tick("active", false, "1970-01-01T00:00:00.000Z"), 0, 0.0);
        assert_eq!((late, early), (Duration::from_millis(1_250), Duration::from_millis(12_500)));
    }

    #[test]
    fn new_and_draining_members_call_more_often() {
        let at = "1970-01-01T00:16:42.000Z";
        assert_eq!(pause_after(&tick("waiting", false, at), 0, 0.1), Duration::from_millis(2_500));
        assert_eq!(pause_after(&tick("waiting", false, at), NEW_FOR, 0.1), Duration::from_secs(9));
        assert_eq!(pause_after(&tick("draining", true, at), 0, 0.1), Duration::from_millis(1_600));
    }
}
