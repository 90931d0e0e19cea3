//! The requests that wait until a run ends, by themselves and by the tasks that they watch.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use tenure_api::watch::EndedClaim;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::number;
use crate::ops::OpError;
use crate::rooms::Room;
use tenure_store::watched_claims::{Held, Seen};

/// What a request is answered with.
pub(super) type Answer = Result<Vec<EndedClaim>, OpError>;

/// A request that waits.
pub(super) struct Request {
    /// Tasks and runs, each once.
    pub(super) runs: Vec<(Uuid, i16)>,
    pub(super) until: Instant,
    pub(super) reply: oneshot::Sender<Answer>,
    /// Free again when it is answered.
    pub(super) _room: Room,
}

/// A task that is watched.
#[derive(Default)]
struct Task {
    /// Its key, once a run of it was seen to be held.
    seq: Option<i64>,
    /// The requests that watch it, each with a run of it. Any number of them may name any number of runs, so that one is found
    /// without a look at the others.
    watching: BTreeSet<(u64, i16)>,
}

/// What is to be looked at.
#[derive(Default)]
pub(super) struct Plan {
    /// To be looked up.
    pub(super) unsure: HashSet<(Uuid, i16)>,
    /// What was held when it was looked at last.
    pub(super) held: Vec<Held>,
}

/// All of them.
#[derive(Default)]
pub(super) struct Waiters {
    requests: HashMap<u64, Request>,
    tasks: HashMap<Uuid, Task>,
    /// The requests whose runs were not looked at yet: they may name a run that was never claimed.
    new: HashSet<u64>,
    /// The key of the next request.
    key: u64,
    /// No later than the first end of a wait.
    next: Option<Instant>,
}

impl Waiters {
    pub(super) fn enter(&mut self, request: Request) {
        self.key += 1;
        self.next = Some(self.next.map_or(request.until, |next| next.min(request.until)));
        for &(task, run) in &request.runs {
            self.tasks.entry(task).or_default().watching.insert((self.key, run));
        }
        self.new.insert(self.key);
        self.requests.insert(self.key, request);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How many requests wait.
    pub(super) fn count(&self) -> usize {
        self.requests.len()
    }

    /// How many runs they watch, each as often as it is watched.
    pub(super) fn runs(&self) -> usize {
        self.requests.values().map(|request| request.runs.len()).sum()
    }

    /// When a wait may end.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Drops those whose client has disconnected.
    pub(super) fn drop_closed(&mut self) {
        let closed = self.requests.iter().filter(|(_, request)| request.reply.is_closed());
        for key in closed.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.remove(key);
        }
    }

    /// All that is watched.
    pub(super) fn all(&self) -> Plan {
        let mut plan = Plan::default();
        for (task, Task { seq, watching }) in &self.tasks {
            for &(key, run) in watching {
                match seq {
                    Some(seq) if !self.new.contains(&key) => plan.held.push(Held { task: *task, seq: *seq, run }),
                    _ => {
                        plan.unsure.insert((*task, run));
                    }
                }
            }
        }
        plan
    }

    /// What is watched of these tasks, and by requests that have just come.
    pub(super) fn some(&self, tasks: &HashSet<Uuid>) -> Plan {
        let new =
            self.new.iter().filter_map(|key| self.requests.get(key)).flat_map(|request| request.runs.iter().copied());
        let named = tasks.iter().filter_map(|id| Some((*id, self.tasks.get(id)?)));
        let named = named.flat_map(|(id, task)| task.watching.iter().map(move |(_, run)| (id, *run)));
        Plan { unsure: new.chain(named).collect(), held: Vec::new() }
    }

    /// Notes what was seen, and answers all requests that watch a run that no worker holds.
    pub(super) fn see(&mut self, seen: &[Seen]) {
        let mut ended = Vec::new();
        for seen in seen {
            match *seen {
                Seen::Held { task, seq } => {
                    if let Some(task) = self.tasks.get_mut(&task) {
                        task.seq = Some(seq);
                    }
                }
                Seen::Ended(claim) => ended.push(claim),
            }
        }
        self.answer(&ended);
    }

    fn answer(&mut self, ended: &[EndedClaim]) {
        let mut by_task: HashMap<Uuid, HashMap<i16, EndedClaim>> = HashMap::new();
        for claim in ended {
            by_task.entry(claim.task_id.uuid()).or_default().insert(number(claim.run_id), *claim);
        }
        let mut answers: HashMap<u64, Vec<EndedClaim>> = HashMap::new();
        for (task, ended) in by_task {
            for (key, run) in self.tasks.get(&task).into_iter().flat_map(|task| &task.watching) {
                if let Some(claim) = ended.get(run) {
                    answers.entry(*key).or_default().push(*claim);
                }
            }
        }
        for (key, ended) in answers {
            self.reply(key, Ok(ended));
        }
    }

    /// Notes that the runs of all requests that have come were looked at.
    pub(super) fn note_looked(&mut self) {
        self.new.clear();
    }

    /// Answers those whose wait is over; an error if their runs could not be looked at.
    pub(super) fn answer_timed_out(&mut self, now: Instant) {
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        let over = self.requests.iter().filter(|(_, request)| request.until <= now);
        for key in over.map(|(key, _)| *key).collect::<Vec<_>>() {
            let unsure = self.new.contains(&key);
            self.reply(key, if unsure { Err(OpError::Unavailable) } else { Ok(Vec::new()) });
        }
        self.next = self.requests.values().map(|request| request.until).min();
    }

    /// Answers all of them, with nothing.
    pub(super) fn answer_all(&mut self) {
        for key in self.requests.keys().copied().collect::<Vec<_>>() {
            self.reply(key, Ok(Vec::new()));
        }
        self.next = None;
    }

    fn reply(&mut self, key: u64, answer: Answer) {
        if let Some(request) = self.remove(key) {
            drop(request.reply.send(answer));
        }
    }

    fn remove(&mut self, key: u64) -> Option<Request> {
        let request = self.requests.remove(&key)?;
        self.new.remove(&key);
        for (task, run) in &request.runs {
            if let Some(Task { watching, .. }) = self.tasks.get_mut(task) {
                watching.remove(&(key, *run));
                if watching.is_empty() {
                    self.tasks.remove(task);
                }
            }
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_api::ids::{RunId, TaskId};
    use tenure_api::states::{ReasonResolved, RunState};
    use tenure_domain::watch::Fate;

    use super::*;
    use crate::rooms::{Caller, Rooms};
    use crate::watches::WATCHED_RUNS_MAX;

    fn task(n: u8) -> TaskId {
        TaskId::from_random([n; 16])
    }

    fn enter(waiters: &mut Waiters, runs: &[(u8, i16)], wait: u64) -> oneshot::Receiver<Answer> {
        let room = Rooms::new(1, runs.len()).enter(runs.len(), Caller::Authenticated).unwrap();
        let (reply, answer) = oneshot::channel();
        let runs = runs.iter().map(|&(n, run)| (task(n).uuid(), run)).collect();
        let until = Instant::now() + Duration::from_secs(wait);
        waiters.enter(Request { runs, until, reply, _room: room });
        answer
    }

    fn canceled(n: u8) -> Seen {
        let fate = Fate::Ended(RunState::Exception, ReasonResolved::Canceled, None);
        Seen::Ended(fate.of_claim(task(n), RunId::FIRST))
    }

    fn held(n: u8) -> Seen {
        Seen::Held { task: task(n).uuid(), seq: i64::from(n) }
    }

    #[test]
    fn a_run_is_looked_up_when_a_request_comes_or_its_task_is_named_and_otherwise_by_its_key() {
        let mut waiters = Waiters::default();
        let mut first = enter(&mut waiters, &[(1, 0), (2, 0)], 30);
        let both: HashSet<(Uuid, i16)> = [1, 2].map(|n| (task(n).uuid(), 0)).into();
        assert_eq!(waiters.some(&HashSet::new()).unsure, both);
        waiters.see(&[held(1), held(2)]);
        waiters.note_looked();
        assert!(waiters.some(&HashSet::new()).unsure.is_empty());
        let named = HashSet::from([task(2).uuid(), task(3).uuid()]);
        assert_eq!(waiters.some(&named).unsure, HashSet::from([(task(2).uuid(), 0)]));
        let all = waiters.all();
        assert_eq!((all.unsure.len(), all.held.iter().map(|held| held.seq).max()), (0, Some(2)));
        let _second = enter(&mut waiters, &[(2, 1)], 30);
        assert_eq!((waiters.runs(), waiters.tasks.len()), (3, 2));
        let all = waiters.all();
        assert_eq!((all.unsure, all.held.len()), (HashSet::from([(task(2).uuid(), 1)]), 2));
        waiters.see(&[canceled(2)]);
        assert_eq!(first.try_recv().unwrap().unwrap().len(), 1);
        assert_eq!((waiters.count(), waiters.tasks.len()), (1, 1), "another run of the task is still watched");
    }

    #[test]
    fn all_requests_that_watch_a_run_are_answered_and_no_other() {
        let mut waiters = Waiters::default();
        let mut watching = [enter(&mut waiters, &[(1, 0)], 30), enter(&mut waiters, &[(1, 0), (2, 0)], 30)];
        let mut other = enter(&mut waiters, &[(2, 0)], 30);
        waiters.see(&[canceled(1)]);
        for answer in &mut watching {
            assert_eq!(answer.try_recv().unwrap().unwrap()[0].task_id, task(1));
        }
        assert!(other.try_recv().is_err());
        waiters.answer_all();
        assert_eq!(other.try_recv().unwrap().unwrap(), []);
        assert!(waiters.is_empty());
    }

    #[test]
    fn requests_for_many_runs_of_one_task_are_answered_in_a_time_that_grows_with_their_number_alone() {
        let runs: Vec<(u8, i16)> = (0..1_000).map(|run| (1, run)).collect();
        let mut waiters = Waiters::default();
        let watching = (0..WATCHED_RUNS_MAX / runs.len()).map(|_| enter(&mut waiters, &runs, 30));
        let mut watching: Vec<_> = watching.collect();
        let missing = |run| Seen::Ended(Fate::Missing.of_claim(task(1), RunId::new(run).unwrap()));
        let seen: Vec<Seen> = (0..1_000).map(missing).collect();
        let began = Instant::now();
        waiters.see(&seen);
        // Milliseconds, unless each run of each request is looked for among those of all.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        for answer in &mut watching {
            assert_eq!(answer.try_recv().unwrap().unwrap().len(), runs.len());
        }
        assert_eq!((waiters.count(), waiters.tasks.len()), (0, 0));
    }

    #[test]
    fn a_wait_that_is_over_is_an_error_if_the_runs_could_not_be_looked_at() {
        let mut waiters = Waiters::default();
        let mut looked = enter(&mut waiters, &[(1, 0)], 0);
        waiters.see(&[held(1)]);
        waiters.note_looked();
        let mut unseen = enter(&mut waiters, &[(2, 0)], 0);
        waiters.answer_timed_out(Instant::now());
        assert_eq!(looked.try_recv().unwrap().unwrap(), []);
        assert!(matches!(unseen.try_recv().unwrap(), Err(OpError::Unavailable)));
        assert_eq!((waiters.count(), waiters.tasks.len()), (0, 0));
    }

    #[test]
    fn requests_whose_clients_have_gone_are_dropped() {
        let mut waiters = Waiters::default();
        drop(enter(&mut waiters, &[(1, 0)], 30));
        let _waiting = enter(&mut waiters, &[(2, 0)], 30);
        waiters.drop_closed();
        assert_eq!((waiters.count(), waiters.tasks.len()), (1, 1));
    }
}
