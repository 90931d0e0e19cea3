//! P8: members with work in progress, which join, die, freeze and lose requests. No two of them may
//! work on a slot at the same time, and in the end every slot has a member.

use super::*;
use proptest::prelude::*;

const INTERVAL: i64 = 10_000;
const STEP: i64 = 100;
/// Churn ends here.
const CHURN: i64 = 400_000;
const END: i64 = CHURN + 100_000;
/// How long a member waits for an answer.
const ANSWER_MAX: i64 = 2_000;

/// A small generator: the simulation is a function of its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as i64
    }

    fn one_in(&mut self, n: i64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy)]
struct View {
    index: u16,
    replicas: u16,
    next: Option<NextShare>,
    deadline: i64,
}

impl View {
    fn allows(&self, slot: u32) -> bool {
        let has = |index: u16, replicas: u16| slot % u32::from(replicas) == u32::from(index);
        has(self.index, self.replicas)
            && self.next.is_none_or(|next| next.index.is_some_and(|index| has(index, next.replicas)))
    }
}

/// A call on its way.
struct Call {
    sent: i64,
    arrives: Option<i64>,
    acked: Option<i64>,
    answer: Option<Answer>,
}

#[derive(Clone, Copy)]
struct Answer {
    made: i64,
    arrives: i64,
    share: Share,
    replicas: u16,
}

#[derive(Default)]
struct Process {
    alive: bool,
    frozen_until: i64,
    view: Option<View>,
    /// Slots with the time at which their work ends.
    work: Vec<(u32, i64)>,
    call: Option<Call>,
    /// Abandoned calls: their arrival times and acknowledged epochs.
    late: Vec<(i64, Option<i64>)>,
    next_call: i64,
    phase: i64,
}

struct World {
    random: Random,
    state: State,
    processes: Vec<Process>,
    away: std::ops::Range<i64>,
}

fn at(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(1_000_000_000 + millis).unwrap()
}

fn name(process: usize) -> String {
    format!("p{process}")
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed | 1);
        let begin = random.below(CHURN);
        let processes = (0..7).map(|_| Process::default()).collect();
        let state =
            State { group: Group::new(Settings { interval: None, drain_timeout: 0 }), members: BTreeMap::new() };
        Self { random, state, processes, away: begin..begin + 60_000 }
    }

    fn churn(&mut self, now: i64) {
        for process in &mut self.processes {
            if now >= CHURN {
                process.frozen_until = process.frozen_until.min(now);
            } else if !process.alive && self.random.one_in(300) {
                let phase = self.random.below(INTERVAL / 4);
                *process = Process { alive: true, next_call: now, phase, ..Process::default() };
            } else if process.alive && self.random.one_in(1_000) {
                *process = Process::default();
            } else if process.alive && now >= process.frozen_until && self.random.one_in(1_500) {
                process.frozen_until = now + self.random.below(60_000);
            }
        }
    }

    fn serve(&mut self, now: i64) {
        if self.away.contains(&now) {
            return;
        }
        for (n, process) in self.processes.iter_mut().enumerate() {
            let member = name(n);
            for (_, acked) in process.late.extract_if(.., |(arrives, _)| *arrives <= now) {
                step(&mut self.state, &[Event::Tick { member: member.clone(), acked }], at(now));
            }
            let Some(call) = &mut process.call else { continue };
            if call.arrives.is_none_or(|arrives| arrives > now) {
                continue;
            }
            call.arrives = None;
            step(&mut self.state, &[Event::Tick { member: member.clone(), acked: call.acked }], at(now));
            if now >= CHURN || !self.random.one_in(10) {
                let arrives = now + self.random.below(ANSWER_MAX / 2);
                let share = self.state.share(&member).unwrap();
                call.answer = Some(Answer { made: now, arrives, share, replicas: self.state.group.replicas });
            }
        }
    }

    fn run_members(&mut self, now: i64) {
        for process in &mut self.processes {
            if process.alive && now >= process.frozen_until {
                process.run(now, &mut self.random);
            }
        }
    }

    /// A frozen process works on nothing.
    fn find_overlap(&self, now: i64) -> Option<u32> {
        let mut busy = vec![false; SLOTS as usize];
        let running = self.processes.iter().filter(|process| process.alive && now >= process.frozen_until);
        let mut slots = running.flat_map(|process| &process.work).map(|(slot, _)| *slot);
        slots.find(|slot| std::mem::replace(&mut busy[*slot as usize], true))
    }

    fn count_owners(&self, now: i64, slot: u32) -> usize {
        let views = self.processes.iter().filter_map(|process| process.view.filter(|view| now < view.deadline));
        views.filter(|view| view.allows(slot)).count()
    }
}

impl Process {
    fn run(&mut self, now: i64, random: &mut Random) {
        self.take_answer(now);
        if self.view.is_none_or(|view| now >= view.deadline) {
            self.view = None;
            self.work.clear();
        }
        self.work.retain(|(_, ends)| *ends > now);
        if let Some(view) = self.view
            && self.work.len() < 5
        {
            let slot = random.below(i64::from(SLOTS)) as u32;
            if view.allows(slot) && self.work.iter().all(|(known, _)| *known != slot) {
                self.work.push((slot, now + random.below(4_000)));
            }
        }
        if self.call.is_none() && now >= self.next_call {
            self.send(now, random);
        }
    }

    fn send(&mut self, now: i64, random: &mut Random) {
        let next = self.view.and_then(|view| Some((view, view.next?)));
        let is_drained = |view: View| self.work.iter().all(|(slot, _)| view.allows(*slot));
        let acked = next.and_then(|(view, next)| is_drained(view).then_some(next.epoch));
        // Some calls are lost, and some arrive when their member has stopped waiting.
        let arrives = if now >= CHURN {
            Some(now + random.below(ANSWER_MAX / 4))
        } else {
            (!random.one_in(10)).then(|| now + random.below(ANSWER_MAX * 3))
        };
        self.call = Some(Call { sent: now, arrives, acked, answer: None });
        self.next_call = match next {
            Some(_) => now + 1_000,
            None => now - now % INTERVAL + INTERVAL + self.phase,
        };
    }

    fn take_answer(&mut self, now: i64) {
        let Some(call) = &self.call else { return };
        if let Some(Answer { made, share, replicas, .. }) = call.answer.filter(|answer| answer.arrives <= now) {
            self.view = share.index.zip(share.valid_until).map(|(index, until)| {
                let valid = (until - at(made)).num_milliseconds();
                View { index, replicas, next: share.next, deadline: call.sent + valid - INTERVAL / 2 }
            });
            if share.next.is_some() {
                self.next_call = self.next_call.min(now + 1_000);
            }
            self.call = None;
        } else if now > call.sent + ANSWER_MAX {
            self.late.extend(call.arrives.map(|arrives| (arrives, call.acked)));
            self.call = None;
            self.next_call = now + 1_000;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_slot_is_worked_on_twice_or_skipped(seed in any::<u64>()) {
        let mut world = World::new(seed);
        for now in (0..END).step_by(STEP as usize) {
            world.churn(now);
            world.serve(now);
            world.run_members(now);
            let overlap = world.find_overlap(now);
            prop_assert!(overlap.is_none(), "slot {overlap:?} at {now}, {:?}", world.state);
        }
        if world.processes.iter().any(|process| process.alive) {
            prop_assert!((0..SLOTS).all(|slot| world.count_owners(END, slot) == 1), "{:?}", world.state);
            prop_assert_eq!(world.state.overall(), PartitionState::Active);
            let alive = world.processes.iter().filter(|process| process.alive).count();
            prop_assert_eq!(usize::from(world.state.group.replicas), alive, "{:?}", world.state);
        }
    }
}
