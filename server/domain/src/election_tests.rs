use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const ACTIVATION_MS: i64 = ACTIVATION.num_milliseconds();
const BEAT_MS: i64 = 1_000;

fn at(ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(1_800_000_000_000 + ms).unwrap()
}

fn id(number: usize) -> Uuid {
    Uuid::from_u128(number as u128 + 1)
}

/// Servers by weight and age of the heartbeat in milliseconds.
fn servers(given: &[(u32, i64)]) -> Vec<Server> {
    given.iter().enumerate().map(|(n, &(weight, age))| Server { id: id(n), weight, beat: at(-age) }).collect()
}

fn view(me: usize, servers: &[Server]) -> View<'_> {
    View { me: id(me), servers, now: at(0) }
}

fn active(server: Option<usize>) -> Active {
    Active { queue: 7, server: server.map(id), term: 3 }
}

/// The observed silence after this number of heartbeats of another server.
fn silence(active: Active, view: &View<'_>, beats: u32) -> Option<Silence> {
    (0..=beats).fold(None, |before, _| Silence::after_beat(before, active, view))
}

#[test]
fn live_server_with_weight_is_candidate() {
    const LOST: i64 = ACTIVATION_MS + 1;
    for (given, has_candidate) in [
        (&[][..], false),
        (&[(0, 0)], false),
        (&[(0, 0), (1, LOST)], false),
        (&[(0, 0), (1, 0)], true),
        (&[(2, 0)], true),
    ] {
        let servers = servers(given);
        assert_eq!(view(0, &servers).has_candidate(), has_candidate, "{given:?}");
    }
}

/// All cases: which server is elected, which is active, whether it lives, and the observed silence.
#[test]
fn every_server_takes_its_step() {
    const LIVE: i64 = ACTIVATION_MS;
    const LOST: i64 = ACTIVATION_MS + 1;
    let waits = BEATS_BEFORE_TAKEOVER - 1;
    let judged = BEATS_BEFORE_TAKEOVER;
    // Servers, the active server, heartbeats since its silence, and the actions of the servers in
    // order.
    type Case<'a> = (&'a [(u32, i64)], Option<usize>, u32, &'a [Step]);
    let cases: [Case<'_>; 20] = [
        (&[(5, 0), (1, 0)], None, 0, &[Step::TakeVacant, Step::Nothing]),
        (&[(5, LOST), (1, 0)], None, 0, &[Step::Nothing, Step::TakeVacant]),
        (&[(0, 0), (0, 0)], None, 0, &[Step::Nothing, Step::Nothing]),
        (&[(5, 0), (1, 0)], Some(0), 0, &[Step::Keep, Step::Nothing]),
        (&[(5, 0), (1, 0)], Some(1), 0, &[Step::Nothing, Step::HandOver(id(0))]),
        (&[(5, LOST), (1, 0)], Some(1), 0, &[Step::Nothing, Step::Keep]),
        (&[(0, 0), (1, 0)], Some(1), 0, &[Step::Nothing, Step::Keep]),
        (&[(0, 0), (1, 0)], Some(0), 0, &[Step::HandOver(id(1)), Step::Nothing]),
        (&[(0, 0), (0, 0)], Some(0), 0, &[Step::Nothing, Step::Nothing]),
        (&[(5, LIVE), (1, 0), (2, 0)], Some(0), judged, &[Step::Keep, Step::Nothing, Step::Nothing]),
        (&[(5, LOST), (1, 0), (2, 0)], Some(0), 0, &[Step::HandOver(id(2)), Step::Nothing, Step::Nothing]),
        (&[(5, LOST), (1, 0), (2, 0)], Some(0), waits, &[Step::HandOver(id(2)), Step::Nothing, Step::Nothing]),
        (&[(5, LOST), (1, 0), (2, 0)], Some(0), judged, &[Step::HandOver(id(2)), Step::Nothing, Step::TakeOver]),
        (&[(5, LOST), (1, 0), (2, LOST)], Some(0), judged, &[Step::HandOver(id(1)), Step::TakeOver, Step::Nothing]),
        (&[(5, LOST), (0, 0)], Some(0), judged, &[Step::Keep, Step::Nothing]),
        // The clock was set back after the first server's heartbeat.
        (&[(5, -LIVE), (1, 0)], Some(1), 0, &[Step::Nothing, Step::HandOver(id(0))]),
        (&[(5, -LOST), (1, 0)], Some(1), 0, &[Step::Nothing, Step::Keep]),
        (&[(5, -LOST), (1, 0)], Some(0), judged, &[Step::HandOver(id(1)), Step::TakeOver]),
        // Its row is gone.
        (&[(1, 0)], Some(9), waits, &[Step::Nothing]),
        (&[(1, 0)], Some(9), judged, &[Step::TakeOver]),
    ];
    for (given, server, beats, expected) in cases {
        let servers = servers(given);
        for (me, expected) in expected.iter().enumerate() {
            let view = view(me, &servers);
            let seen = silence(active(server), &view, beats);
            assert_eq!(step(active(server), &view, seen), *expected, "{given:?} {server:?} {beats} by {me}");
        }
    }
    assert_eq!(step(active(None), &view(0, &[]), None), Step::Nothing, "not registered yet");
    assert_eq!(step(active(Some(0)), &view(0, &[]), None), Step::Nothing);
}

#[test]
fn silence_is_per_server_and_term_and_ends_with_beat() {
    let lost = servers(&[(5, 60_000), (1, 0)]);
    let (row, me) = (active(Some(0)), view(1, &lost));
    let seen = silence(row, &me, BEATS_BEFORE_TAKEOVER);
    assert_eq!(step(row, &me, seen), Step::TakeOver);
    for other in [Active { term: 4, ..row }, active(Some(8)), Active { queue: 8, ..row }] {
        assert_eq!(step(other, &me, seen), Step::Nothing, "not silent long enough: {other:?}");
        let again = Silence::after_beat(seen, other, &me);
        assert_eq!(step(other, &me, again), Step::Nothing);
    }
    // A heartbeat came meanwhile, but it is old: the database is slow.
    let slow = servers(&[(5, ACTIVATION_MS + 10), (1, 0)]);
    let again = Silence::after_beat(seen, row, &view(1, &slow));
    assert_eq!(step(row, &view(1, &slow), again), Step::Nothing);
    let back = servers(&[(5, 10), (1, 0)]);
    assert_eq!(Silence::after_beat(seen, row, &view(1, &back)), None);
    assert_eq!(Silence::after_beat(seen, row, &view(0, &lost)), None, "no silence of oneself");
}

#[test]
fn equal_weights_share_queues_with_minimal_moves() {
    let four = servers(&[(3, 0); 4]);
    let elected =
        |servers: &[Server]| -> Vec<Option<Uuid>> { (0..1_000).map(|queue| view(0, servers).elected(queue)).collect() };
    let before = elected(&four);
    for server in &four {
        let share = before.iter().filter(|elected| **elected == Some(server.id)).count();
        assert!((150..350).contains(&share), "{share} of a thousand");
    }
    let after = elected(&four[1..]);
    for (before, after) in before.iter().zip(after) {
        assert!(*before == after || *before == Some(id(0)));
    }
    let mut turned = four.clone();
    turned.reverse();
    assert_eq!(elected(&turned), before, "independent of the order");
}

/// An event in a simulation: a server stops or continues, or the database stalls.
#[derive(Debug, Clone, Copy)]
enum Event {
    Stop(usize),
    Go(usize),
    Stall(i64),
}

struct Simulated {
    weight: u32,
    stopped: bool,
    silence: Option<Silence>,
    /// Start of the next heartbeat.
    next_ms: i64,
    /// When the pending heartbeat, if any, is answered.
    answered_ms: Option<i64>,
}

/// Servers on one database with one queue.
struct Simulation {
    servers: Vec<Simulated>,
    beats: BTreeMap<Uuid, DateTime<Utc>>,
    row: Active,
    /// The active server of each term.
    terms: BTreeMap<i64, Uuid>,
    takeovers: Vec<i64>,
    stalled_until_ms: i64,
    now_ms: i64,
}

impl Simulation {
    fn new(weights: &[(u32, i64)]) -> Self {
        let servers = weights.iter().map(|&(weight, next_ms)| Simulated {
            weight,
            stopped: false,
            silence: None,
            next_ms,
            answered_ms: None,
        });
        Self {
            servers: servers.collect(),
            beats: BTreeMap::new(),
            row: Active { queue: 1, server: None, term: 0 },
            terms: BTreeMap::new(),
            takeovers: Vec::new(),
            stalled_until_ms: 0,
            now_ms: 0,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Stop(server) => self.servers[server].stopped = true,
            Event::Go(server) => self.servers[server].stopped = false,
            Event::Stall(ms) => self.stalled_until_ms = self.stalled_until_ms.max(self.now_ms + ms),
        }
    }

    /// Advances the time in steps of 10 ms.
    fn run(&mut self, ms: i64) {
        for _ in 0..ms / 10 {
            self.now_ms += 10;
            for server in 0..self.servers.len() {
                self.run_server(server);
            }
        }
    }

    fn run_server(&mut self, number: usize) {
        let (now_ms, is_stalled) = (self.now_ms, self.now_ms < self.stalled_until_ms);
        let server = &mut self.servers[number];
        if server.answered_ms.is_none() && !server.stopped && server.next_ms <= now_ms {
            server.answered_ms = Some(now_ms + 20);
        }
        // A sent heartbeat is executed even if its server has stopped since.
        if is_stalled || server.answered_ms.is_none_or(|answered| answered > now_ms) {
            return;
        }
        let beat = self.beats.entry(id(number)).or_insert_with(|| at(now_ms));
        *beat = at(now_ms);
        if server.stopped {
            server.answered_ms = None;
            return;
        }
        server.answered_ms = None;
        server.next_ms = now_ms + BEAT_MS;
        self.decide(number);
    }

    fn decide(&mut self, number: usize) {
        let weights = |id: &Uuid| self.servers[usize::try_from(id.as_u128()).unwrap() - 1].weight;
        let servers: Vec<Server> =
            self.beats.iter().map(|(id, beat)| Server { id: *id, weight: weights(id), beat: *beat }).collect();
        let view = View { me: id(number), servers: &servers, now: at(self.now_ms) };
        let seen = Silence::after_beat(self.servers[number].silence, self.row, &view);
        self.servers[number].silence = seen;
        let (next, is_takeover) = match step(self.row, &view, seen) {
            Step::Keep | Step::Nothing => return,
            Step::TakeOver => (id(number), true),
            Step::TakeVacant => (id(number), false),
            Step::HandOver(to) => (to, false),
        };
        self.row = Active { server: Some(next), term: self.row.term + 1, ..self.row };
        assert_eq!(self.terms.insert(self.row.term, next), None, "one server in a term");
        self.takeovers.extend(is_takeover.then_some(self.now_ms));
    }

    fn weight_of_active(&self) -> Option<u32> {
        let server = self.row.server?;
        Some(self.servers[usize::try_from(server.as_u128()).unwrap() - 1].weight)
    }
}

fn fleet() -> impl Strategy<Value = Vec<(u32, i64)>> {
    prop::collection::vec((0_u32..4, 0_i64..1_000), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// A stopped server is replaced in time by the heaviest of the others, and gets its queues back
    /// when it continues.
    #[test]
    fn lost_server_is_replaced_in_time(mut fleet in fleet(), wait in 0_i64..3_000) {
        fleet.push((9, 0));
        fleet.push((8, 500));
        let heaviest = fleet.len() - 2;
        let mut simulation = Simulation::new(&fleet);
        simulation.run(5_000 + wait / 10 * 10);
        prop_assert_eq!(simulation.weight_of_active(), Some(9));
        simulation.happen(Event::Stop(heaviest));
        // Three heartbeats after the heartbeat that saw the silence, each with its response time.
        let bound = ACTIVATION_MS + (i64::from(BEATS_BEFORE_TAKEOVER) + 1) * (BEAT_MS + 30);
        simulation.run(ACTIVATION_MS - BEAT_MS);
        prop_assert_eq!(simulation.weight_of_active(), Some(9), "not too early");
        simulation.run(bound - (ACTIVATION_MS - BEAT_MS) + 10);
        prop_assert_eq!(simulation.weight_of_active(), Some(8));
        prop_assert_eq!(simulation.takeovers.len(), 1);
        simulation.happen(Event::Go(heaviest));
        simulation.run(3_000);
        prop_assert_eq!(simulation.weight_of_active(), Some(9), "returned to the heaviest");
        prop_assert_eq!(simulation.takeovers.len(), 1, "by hand-over");
    }

    /// Stalls of the database replace no server, however long and frequent.
    #[test]
    fn stalled_database_replaces_no_server(
        fleet in fleet(),
        stalls in prop::collection::vec((0_i64..20_000, 10_i64..30_000), 1..6),
    ) {
        let mut simulation = Simulation::new(&fleet);
        simulation.run(5_000);
        let before = simulation.row;
        for (pause, stall) in stalls {
            simulation.run(pause);
            simulation.happen(Event::Stall(stall));
        }
        simulation.run(60_000);
        prop_assert_eq!(simulation.row, before);
        let greatest = fleet.iter().map(|(weight, _)| *weight).max().filter(|weight| *weight > 0);
        prop_assert_eq!(simulation.weight_of_active(), greatest);
    }

    /// Each term has one server, asserted at each change. In the end the heaviest live server is
    /// active, after any stops, continuations and stalls.
    #[test]
    fn heaviest_live_server_becomes_active(
        fleet in fleet(),
        events in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..3, 10_i64..12_000), 0..30),
    ) {
        let mut simulation = Simulation::new(&fleet);
        for (server, kind, ms) in events {
            let server = server.index(fleet.len());
            simulation.happen([Event::Stop(server), Event::Go(server), Event::Stall(ms)][usize::from(kind)]);
            simulation.run(ms / 10 * 10);
        }
        simulation.run(60_000);
        let living = simulation.servers.iter().filter(|server| !server.stopped);
        let greatest = living.map(|server| server.weight).max().filter(|weight| *weight > 0);
        if greatest.is_some() {
            prop_assert_eq!(simulation.weight_of_active(), greatest);
            let server = usize::try_from(simulation.row.server.unwrap().as_u128()).unwrap() - 1;
            prop_assert!(!simulation.servers[server].stopped);
        }
    }
}
