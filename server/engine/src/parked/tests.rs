use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::*;

/// Timeout of expected events.
const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(20);
const NEVER: Duration = Duration::from_secs(3600);
const ONLY_NOTIFICATIONS: Timing = Timing { all_every: NEVER, timeout: NEVER, fallback: true };
const ALL_OFTEN: Timing = Timing { all_every: SHORT, timeout: NEVER, fallback: true };

/// Data that the polls read.
#[derive(Default)]
struct Table {
    changed: Mutex<HashSet<u32>>,
    polls: AtomicUsize,
    fails: AtomicBool,
    hangs: AtomicBool,
}

struct Reader(Arc<Table>);

type Answer = Result<u32, GiveUp>;

impl Waiter for oneshot::Sender<Answer> {
    fn is_closed(&self) -> bool {
        oneshot::Sender::is_closed(self)
    }

    fn give_up(self, reason: GiveUp) {
        let _ = self.send(Err(reason));
    }
}

impl Source for Reader {
    type Key = u32;
    type Waiter = oneshot::Sender<Answer>;
    const GAUGE: &'static str = "parked_in_tests";

    async fn poll(&mut self, parked: &mut Parked<Self>, due: &Due<u32>) -> Result<bool, sqlx::Error> {
        self.0.polls.fetch_add(1, Ordering::SeqCst);
        if self.0.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.0.fails.load(Ordering::SeqCst) {
            return Err(sqlx::Error::PoolTimedOut);
        }
        let keys: Vec<u32> = if due.all { parked.keys().collect() } else { due.named().collect() };
        let changed = self.0.changed.lock().unwrap().clone();
        for key in keys.into_iter().filter(|key| changed.contains(key)) {
            parked.take(key).for_each(|waiter| {
                let _ = waiter.send(Ok(key));
            });
        }
        Ok(false)
    }
}

struct Ground {
    table: Arc<Table>,
    signal: Arc<Signal<u32>>,
    parking: Parking<Reader>,
    stop: CancellationToken,
}

impl Ground {
    fn new(timing: Timing) -> Self {
        let (table, signal, stop) = (Arc::<Table>::default(), Arc::default(), CancellationToken::new());
        let reader = Reader(Arc::clone(&table));
        let parking = Parking::start(reader, Arc::clone(&signal), timing, &TaskTracker::new(), stop.clone());
        Self { table, signal, parking, stop }
    }

    fn park(&self, key: u32, wait: Duration) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        self.parking.park(key, Some(Instant::now() + wait), reply);
        answer
    }

    fn change(&self, key: u32) {
        self.table.changed.lock().unwrap().insert(key);
    }

    /// Waits until the arrival of the requests so far was polled.
    async fn polled(&self, polls: usize) {
        let reached = async {
            while self.table.polls.load(Ordering::SeqCst) < polls {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, reached).await.expect("the table is polled");
    }
}

async fn answer(receiver: oneshot::Receiver<Answer>) -> Answer {
    timeout(SOON, receiver).await.expect("the request is answered in time").unwrap()
}

#[tokio::test]
async fn new_request_is_polled_at_once() {
    let ground = Ground::new(ONLY_NOTIFICATIONS);
    ground.change(1);
    assert_eq!(answer(ground.park(1, NEVER)).await, Ok(1));
}

#[tokio::test]
async fn notification_answers_its_key_and_no_other() {
    let ground = Ground::new(ONLY_NOTIFICATIONS);
    let (one, again, mut other) = (ground.park(1, NEVER), ground.park(1, NEVER), ground.park(2, NEVER));
    ground.polled(1).await;
    ground.change(1);
    ground.change(2);
    ground.signal.notify([1]);
    assert_eq!((answer(one).await, answer(again).await), (Ok(1), Ok(1)));
    assert!(other.try_recv().is_err());
    ground.signal.notify_all();
    assert_eq!(answer(other).await, Ok(2));
}

#[tokio::test]
async fn poll_of_all_keys_finds_change_without_notification() {
    for fallback in [true, false] {
        let ground = Ground::new(Timing { fallback, ..ALL_OFTEN });
        let receiver = ground.park(1, SHORT * 50);
        ground.polled(1).await;
        tokio::time::sleep(POLL_AT_MOST_EVERY * 2).await;
        ground.change(1);
        let expected = if fallback { Ok(1) } else { Err(GiveUp::Deadline) };
        assert_eq!(answer(receiver).await, expected, "fallback: {fallback}");
    }
}

#[tokio::test]
async fn deadline_counts_from_first_poll() {
    let ground = Ground::new(ONLY_NOTIFICATIONS);
    ground.change(2);
    // The second request arrives while the next poll is delayed.
    assert_eq!(answer(ground.park(1, Duration::ZERO)).await, Err(GiveUp::Deadline));
    assert_eq!(answer(ground.park(2, Duration::ZERO)).await, Ok(2));
}

#[tokio::test]
async fn failed_poll_is_repeated_and_named_at_deadline() {
    let ground = Ground::new(ALL_OFTEN);
    ground.table.fails.store(true, Ordering::SeqCst);
    ground.change(1);
    let waiting = ground.park(1, NEVER);
    assert_eq!(answer(ground.park(1, SHORT)).await, Err(GiveUp::Unpolled));
    ground.table.fails.store(false, Ordering::SeqCst);
    assert_eq!(answer(waiting).await, Ok(1));
}

#[tokio::test]
async fn silent_poll_is_given_up_and_repeated() {
    let ground = Ground::new(Timing { timeout: SHORT, ..ALL_OFTEN });
    ground.table.hangs.store(true, Ordering::SeqCst);
    ground.change(1);
    let waiting = ground.park(1, NEVER);
    ground.polled(2).await;
    ground.table.hangs.store(false, Ordering::SeqCst);
    assert_eq!(answer(waiting).await, Ok(1));
}

#[tokio::test]
async fn drain_gives_up_parked_and_later_requests() {
    let ground = Ground::new(ONLY_NOTIFICATIONS);
    let parked = ground.park(1, NEVER);
    ground.polled(1).await;
    ground.stop.cancel();
    assert_eq!(answer(parked).await, Err(GiveUp::Draining));
    assert_eq!(answer(ground.park(2, NEVER)).await, Err(GiveUp::Draining));
}

#[tokio::test]
async fn request_of_disconnected_client_is_dropped() {
    let ground = Ground::new(ALL_OFTEN);
    drop(ground.park(1, NEVER));
    let _waiting = ground.park(2, NEVER);
    let dropped = async {
        while ground.signal.waiting() != 1 {
            tokio::time::sleep(SHORT).await;
        }
    };
    timeout(SOON, dropped).await.expect("one request is left");
}

#[tokio::test]
async fn polls_keep_minimum_interval() {
    let ground = Ground::new(ONLY_NOTIFICATIONS);
    let _waiting = ground.park(1, NEVER);
    let began = Instant::now();
    while began.elapsed() < POLL_AT_MOST_EVERY * 10 {
        ground.signal.notify([1]);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let most = began.elapsed().as_millis() / POLL_AT_MOST_EVERY.as_millis() + 1;
    let polls = ground.table.polls.load(Ordering::SeqCst) as u128;
    assert!((2..=most).contains(&polls), "{polls} polls");
}

#[tokio::test]
async fn signal_without_waiting_requests_keeps_nothing() {
    let signal = Signal::default();
    signal.notify_if_waiting([1]);
    signal.notify_all();
    assert!(signal.take().keys.is_empty());
    let waiting = signal.enter();
    signal.notify_if_waiting([1]);
    signal.notify_all();
    let notified = signal.take();
    assert!(notified.all && notified.keys == HashSet::from([1]));
    drop(waiting);
    assert_eq!(signal.waiting(), 0);
}
