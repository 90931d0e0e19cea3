//! Histories of workers with sessions.

mod commands;

use super::*;
use crate::history::sessions::{Act, Begun, Item, Items, SessionCall, Shown};
use tenure_api::dates::Timestamp;
use tenure_api::ids::SessionId;
use tenure_api::states::SessionEnd;

const MEMBER: usize = 20;
const GONE: u16 = 410;
/// TTL of sessions. The clock shows as many milliseconds as the story has units of time.
const TTL: i64 = 1_000;

fn session(number: i64) -> SessionId {
    format!("00000000-0000-4000-8000-{number:012x}").parse().unwrap()
}

impl Story {
    fn time(&self) -> i64 {
        self.now.cast_signed()
    }

    fn act(&mut self, act: Act) {
        let call = SessionCall { queue: QUEUE, worker: MEMBER, act, clock: self.time() + 20 };
        self.next(Event::Session(call));
    }

    fn begins(&mut self, number: i64, takeover: bool) -> SessionId {
        let begun = Begun { session: session(number), epoch: number, expires: self.time() + TTL };
        self.act(Act::Start { takeover, answer: Answer::Done(begun) });
        self.shows(begun.session, 0, Some((begun.expires, SessionEnd::Expired)));
        begun.session
    }

    fn claims(&mut self, session: SessionId, runs: &[RunKey]) {
        self.act(Act::Claim { session, answer: Answer::Done(runs.to_vec()) });
        let Record { start, end, .. } = *self.history.records.last().unwrap();
        self.at(start, end, Event::ClaimWork { queue: QUEUE, worker: MEMBER, answer: Answer::Done(runs.to_vec()) });
    }

    fn renews(&mut self, session: SessionId, refused: Option<u16>) {
        let expires = self.time() + TTL;
        self.act(Act::Renew { session, answer: refused.map_or(Answer::Done(expires), Answer::Refused) });
    }

    fn closes(&mut self, session: SessionId, returned: i64) {
        self.act(Act::Close { session, answer: Answer::Done(returned) });
        self.shows(session, 0, Some((self.time(), SessionEnd::Closed)));
    }

    fn reads(&mut self, session: SessionId, after: i64, items: &[(i64, Item)]) {
        let items = Items { expires: self.time() + TTL, items: items.to_vec() };
        self.act(Act::Inbox { session, after, answer: Answer::Done(items) });
    }

    fn shows(&mut self, session: SessionId, running: i64, ended: Option<(i64, SessionEnd)>) {
        let shown = Shown { expires: self.time() + TTL, running, ended };
        self.history.quiet.sessions.insert(session, shown.clone());
        self.history.drained.sessions.insert(session, shown);
    }

    fn works(&mut self, session: SessionId) -> SlugId {
        let (one, other) = (self.created(LOW), self.created(LOW));
        self.claims(session, &[(one, 0), (other, 0)]);
        self.reported((one, 0), Verdict::Completed, Answer::Done(()));
        self.ends(one, LOW, &[(MEMBER, Verdict::Completed)]);
        other
    }

    /// Gives the held task to another worker. `costs`: retries used.
    fn goes_on(&mut self, task: SlugId, costs: u32) {
        self.claimed(0, &[(task, 1)]);
        self.reported((task, 1), Verdict::Completed, Answer::Done(()));
        self.ends(task, LOW, &[(MEMBER, Verdict::WorkerShutdown), (0, Verdict::Completed)]);
        for snapshot in [&mut self.history.quiet, &mut self.history.drained] {
            snapshot.tasks.get_mut(&task).unwrap().retries_left = 3 - costs;
        }
    }

    /// Makes the first run of a task end by claim expiry, `units` from now.
    fn expires_in(&mut self, task: SlugId, units: i64) {
        let until = chrono::DateTime::from_timestamp_millis(self.time() + units).map(Timestamp::new);
        for snapshot in [&mut self.history.quiet, &mut self.history.drained] {
            let run = &mut snapshot.tasks.get_mut(&task).unwrap().runs[0];
            (run.reason_resolved, run.taken_until) = (Some("claim-expired".to_owned()), until);
        }
    }
}

/// A session that its worker ends while it holds one run.
fn one_membership() -> (Story, SessionId, SlugId) {
    let mut story = Story::new();
    let mine = story.begins(1, false);
    let task = story.works(mine);
    story.closes(mine, 1);
    story.goes_on(task, 0);
    (story, mine, task)
}

#[test]
fn a_true_history_of_sessions_has_no_violation() {
    let (mut story, first, task) = one_membership();
    story.closes(first, 1);
    story.renews(first, Some(GONE));
    story.reported((task, 0), Verdict::Completed, Answer::Refused(409));
    let second = story.begins(2, false);
    story.act(Act::Start { takeover: false, answer: Answer::Refused(409) });
    let task = story.works(second);
    story.reads(second, 0, &[]);
    let third = story.begins(3, true);
    story.shows(second, 0, Some((story.time(), SessionEnd::Takeover)));
    story.act(Act::Claim { session: second, answer: Answer::Refused(GONE) });
    story.act(Act::Claim { session: second, answer: Answer::Done(Vec::new()) });
    story.goes_on(task, 1);
    story.renews(third, None);
    let expires = story.time() + TTL;
    story.shows(third, 0, Some((expires, SessionEnd::Expired)));
    assert_eq!(story.broken(), []);
}

#[test]
fn a_session_that_is_live_after_its_end_is_found() {
    let after: [fn(&mut Story, SessionId); 4] = [
        |story, mine| story.renews(mine, None),
        |story, mine| story.reads(mine, 0, &[]),
        |story, mine| story.act(Act::Command { session: mine, answer: Answer::Done(1) }),
        |story, mine| {
            let task = story.created(LOW);
            story.claims(mine, &[(task, 0)]);
            story.reported((task, 0), Verdict::Completed, Answer::Done(()));
            story.ends(task, LOW, &[(MEMBER, Verdict::Completed)]);
        },
    ];
    for act in after {
        let (mut story, mine, _) = one_membership();
        act(&mut story, mine);
        assert_eq!(story.broken(), [Rule::SessionOver]);
    }
    // The same after an answer that the session has ended.
    let mut story = Story::new();
    let mine = story.begins(1, false);
    story.renews(mine, Some(GONE));
    assert_eq!(story.broken(), []);
    story.renews(mine, None);
    assert!(story.broken().contains(&Rule::SessionOver));
}

#[test]
fn call_overlapping_end_may_have_either_answer() {
    let (mut story, mine, _) = one_membership();
    let close = story
        .history
        .records
        .iter()
        .find(|record| matches!(&record.event, Event::Session(SessionCall { act: Act::Close { .. }, .. })));
    let (start, end) = close.map(|close| (close.start, close.end)).unwrap();
    story.renews(mine, None);
    let renewal = story.history.records.last_mut().unwrap();
    (renewal.start, renewal.end) = (end, end + 1);
    assert_eq!(story.broken(), []);
    story.history.records.last_mut().unwrap().start = start - 1;
    assert_eq!(story.broken(), []);
}

#[test]
fn two_live_sessions_of_a_worker_are_found() {
    let mut story = Story::new();
    let first = story.begins(1, false);
    story.begins(2, true);
    story.shows(first, 0, Some((story.time(), SessionEnd::Takeover)));
    story.renews(first, Some(GONE));
    assert_eq!(story.broken(), []);
    story.history.records.pop();
    story.renews(first, None);
    assert_eq!(story.broken(), [Rule::SessionOver]);
    // A start without an answer may have ended it or not.
    let mut story = Story::new();
    let first = story.begins(1, false);
    story.act(Act::Start { takeover: true, answer: Answer::Unknown });
    story.renews(first, None);
    let expires = story.time() + TTL;
    story.shows(first, 0, Some((expires, SessionEnd::Expired)));
    assert_eq!(story.broken(), []);
}

#[test]
fn an_epoch_that_does_not_grow_is_found() {
    for (epoch, broken) in [(8, vec![]), (7, vec![Rule::SessionOver]), (6, vec![Rule::SessionOver])] {
        let mut story = Story::new();
        let first = story.begins(7, false);
        story.closes(first, 0);
        let begun = Begun { session: session(99), epoch, expires: story.time() + TTL };
        story.act(Act::Start { takeover: false, answer: Answer::Done(begun) });
        assert_eq!(story.broken(), broken, "{epoch}");
    }
}

#[test]
fn start_refused_without_reason_is_found() {
    let (mut story, ..) = one_membership();
    story.act(Act::Start { takeover: false, answer: Answer::Refused(409) });
    assert_eq!(story.broken(), [Rule::SessionOver]);
    let (mut story, ..) = one_membership();
    story.act(Act::Start { takeover: false, answer: Answer::Unknown });
    story.act(Act::Start { takeover: false, answer: Answer::Refused(409) });
    assert_eq!(story.broken(), []);
}

#[test]
fn a_session_that_ends_before_its_time_is_found() {
    let mut story = Story::new();
    let mine = story.begins(1, false);
    story.renews(mine, None);
    let expires = story.time() - 10 + TTL;
    for (ended, broken) in [(expires, vec![]), (expires - 1, vec![Rule::SessionOver])] {
        story.shows(mine, 0, Some((ended, SessionEnd::Expired)));
        assert_eq!(story.broken(), broken);
    }
    // An end by its worker or by a takeover needs no time.
    story.shows(mine, 0, Some((story.time(), SessionEnd::Takeover)));
    assert_eq!(story.broken(), []);
}

#[test]
fn a_time_to_live_that_goes_back_is_found() {
    let mut story = Story::new();
    let mine = story.begins(1, false);
    let begun = story.time() - 10 + TTL;
    story.act(Act::Renew { session: mine, answer: Answer::Done(begun) });
    assert_eq!(story.broken(), []);
    story.act(Act::Renew { session: mine, answer: Answer::Done(begun - 1) });
    assert_eq!(story.broken(), [Rule::SessionOver]);
}

#[test]
fn run_kept_by_ended_session_is_found() {
    let (mut story, _, task) = one_membership();
    let status = story.history.quiet.tasks.get_mut(&task).unwrap();
    status.runs.pop();
    (status.state, status.runs[0].state) = ("running".to_owned(), "running".to_owned());
    story.history.quiet.counts = vec![Counts { claimed_tasks: 1, ..Counts::default() }];
    assert_eq!(story.broken(), [Rule::SessionLeak]);
    // Only the server shows that it has ended.
    story
        .history
        .records
        .retain(|record| !matches!(&record.event, Event::Session(SessionCall { act: Act::Close { .. }, .. })));
    assert_eq!(story.broken(), [Rule::SessionLeak]);
    story.history.quiet.sessions.clear();
    assert_eq!(story.broken(), []);
}

#[test]
fn run_kept_until_claim_expiry_is_found() {
    let (mut story, _, task) = one_membership();
    story.expires_in(task, TTL);
    assert_eq!(story.broken(), [Rule::SessionLeak]);
    // At the answer of the end the claim may have expired.
    let (mut story, mine, task) = one_membership();
    story.expires_in(task, -100);
    assert_eq!(story.broken(), [Rule::SessionLeak], "one run was returned and none ended with the session");
    story.closes(mine, 0);
    story.history.records.retain(|record| {
        !matches!(&record.event, Event::Session(SessionCall { act: Act::Close { answer: Answer::Done(1), .. }, .. }))
    });
    assert_eq!(story.broken(), []);
}

#[test]
fn report_or_renewal_after_end_is_found() {
    let (mut story, _, task) = one_membership();
    story.next(Event::Reclaim { run: (task, 0), answer: Answer::Done(()) });
    assert_eq!(story.broken(), [Rule::SessionLeak]);
    let (mut story, _, task) = one_membership();
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    assert!(story.broken().contains(&Rule::SessionLeak));
    // A report that equals the end is answered as a repeat.
    let (mut story, _, task) = one_membership();
    story.reported((task, 0), Verdict::WorkerShutdown, Answer::Done(()));
    assert_eq!(story.broken(), []);
    // A report before the end may be repeated after it.
    let mut story = Story::new();
    let mine = story.begins(1, false);
    let task = story.created(LOW);
    story.claims(mine, &[(task, 0)]);
    story.reported((task, 0), Verdict::Completed, Answer::Unknown);
    story.closes(mine, 0);
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(MEMBER, Verdict::Completed)]);
    assert_eq!(story.broken(), []);
}

#[test]
fn claim_overlapping_end_may_be_reported_later() {
    let (mut story, mine, _) = one_membership();
    let task = story.created(LOW);
    story.claims(mine, &[(task, 0)]);
    let closed = story
        .history
        .records
        .iter()
        .find(|record| matches!(&record.event, Event::Session(SessionCall { act: Act::Close { .. }, .. })));
    let started = closed.unwrap().start;
    let claims = story.history.records.len() - 2;
    for record in &mut story.history.records[claims..] {
        record.start = started - 1;
    }
    story.reported((task, 0), Verdict::Completed, Answer::Done(()));
    story.ends(task, LOW, &[(MEMBER, Verdict::Completed)]);
    assert_eq!(story.broken(), []);
}

#[test]
fn a_wrong_number_of_returned_runs_is_found() {
    for returned in [0, 2] {
        let mut story = Story::new();
        let mine = story.begins(1, false);
        let task = story.works(mine);
        story.closes(mine, returned);
        story.goes_on(task, 0);
        assert_eq!(story.broken(), [Rule::SessionLeak], "{returned}");
        story.act(Act::Claim { session: mine, answer: Answer::Unknown });
        assert_eq!(story.broken().is_empty(), returned == 2);
    }
}

#[test]
fn repeated_end_with_other_number_is_found() {
    let (mut story, mine, _) = one_membership();
    story.closes(mine, 2);
    assert!(story.broken().contains(&Rule::SessionLeak));
}

#[test]
fn a_release_that_costs_a_retry_or_the_task_is_found() {
    let (mut story, _, task) = one_membership();
    story.goes_on(task, 1);
    let repeated = story.history.records.len() - 2;
    story.history.records.truncate(repeated);
    assert_eq!(story.broken(), [Rule::SessionLeak]);
    let (mut story, _, task) = one_membership();
    let claimed = story.history.records.len() - 2;
    story.history.records.truncate(claimed);
    story.ends(task, LOW, &[(MEMBER, Verdict::WorkerShutdown)]);
    assert_eq!(story.broken(), [Rule::SessionLeak]);
}

#[test]
fn a_session_that_never_expires_is_found() {
    let mut story = Story::new();
    let mine = story.begins(1, false);
    story.shows(mine, 0, None);
    assert_eq!(story.broken(), [Rule::SessionLeak]);
    story.shows(mine, 1, Some((story.time() + TTL, SessionEnd::Expired)));
    assert_eq!(story.broken(), [Rule::SessionLeak]);
}

fn cancelled() -> (Story, SessionId, Item) {
    let mut story = Story::new();
    let mine = story.begins(1, false);
    let task = story.created(LOW);
    story.claims(mine, &[(task, 0)]);
    story.renews(mine, None);
    story.next(Event::Change { task, change: Change::Cancel, answer: Answer::Done(()) });
    story.ends(task, LOW, &[(MEMBER, Verdict::InternalError)]);
    for snapshot in [&mut story.history.quiet, &mut story.history.drained] {
        snapshot.tasks.get_mut(&task).unwrap().runs[0].reason_resolved = Some("canceled".to_owned());
    }
    let expires = story.time() + 10 * TTL;
    story.shows(mine, 0, Some((expires, SessionEnd::Expired)));
    (story, mine, Item::RunEnded((task, 0), "exception".to_owned(), "canceled".to_owned()))
}

#[test]
fn an_item_comes_again_until_it_is_acknowledged() {
    let (mut story, mine, item) = cancelled();
    story.reads(mine, 0, &[(4, item.clone())]);
    story.reads(mine, 0, &[(4, item.clone())]);
    story.act(Act::Command { session: mine, answer: Answer::Done(5) });
    story.reads(mine, 0, &[(4, item.clone()), (5, Item::Command)]);
    story.reads(mine, 4, &[(5, Item::Command)]);
    // The acknowledgement of this item is uncertain.
    story.act(Act::Inbox { session: mine, after: 5, answer: Answer::Unknown });
    let before = story.history.records.len();
    for last in [vec![], vec![(5, Item::Command)]] {
        story.history.records.truncate(before);
        story.reads(mine, 4, &last);
        assert_eq!(story.broken(), []);
    }
    story.reads(mine, 0, &[(4, item)]);
    assert_eq!(story.broken(), [Rule::SessionInbox]);
}

#[test]
fn an_item_that_is_lost_is_found() {
    let (mut story, mine, item) = cancelled();
    story.reads(mine, 0, &[(4, item)]);
    story.reads(mine, 0, &[]);
    assert_eq!(story.broken(), [Rule::SessionInbox]);
    let (mut story, mine, _) = cancelled();
    story.reads(mine, 0, &[]);
    assert_eq!(story.broken(), [Rule::SessionInbox], "a run that was cancelled");
    let mut story = Story::new();
    let mine = story.begins(1, false);
    story.act(Act::Command { session: mine, answer: Answer::Done(5) });
    story.reads(mine, 0, &[]);
    assert!(story.broken().contains(&Rule::SessionInbox), "a command");
}

/// The session is renewed before its items are read, and a takeover in between deletes them.
#[test]
fn inbox_read_during_end_may_lack_items() {
    for (overlaps, expected) in [(true, vec![]), (false, vec![Rule::SessionInbox])] {
        let mut story = Story::new();
        let mine = story.begins(1, false);
        story.act(Act::Command { session: mine, answer: Answer::Done(5) });
        story.reads(mine, 0, &[]);
        let read = story.history.records.len() - 1;
        story.begins(2, true);
        story.shows(mine, 0, Some((story.time(), SessionEnd::Takeover)));
        if overlaps {
            story.history.records[read].end = story.now + 1;
        }
        assert_eq!(story.broken(), expected);
    }
}

#[test]
fn items_out_of_order_or_under_a_used_id_are_found() {
    let (mut story, mine, item) = cancelled();
    story.act(Act::Command { session: mine, answer: Answer::Done(5) });
    story.reads(mine, 0, &[(5, Item::Command), (4, item.clone())]);
    assert_eq!(story.broken(), [Rule::SessionInbox]);
    let (mut story, mine, item) = cancelled();
    story.reads(mine, 0, &[(4, item.clone())]);
    story.reads(mine, 0, &[(4, Item::Command)]);
    assert_eq!(story.broken(), [Rule::SessionInbox]);
    let (mut story, mine, item) = cancelled();
    story.reads(mine, 4, &[(4, item)]);
    assert_eq!(story.broken(), [Rule::SessionInbox]);
}

#[test]
fn item_about_own_or_foreign_run_is_found() {
    for (state, reason) in [("completed", "completed"), ("exception", "worker-shutdown")] {
        let mut story = Story::new();
        let mine = story.begins(1, false);
        let task = story.works(mine);
        story.reads(mine, 0, &[(4, Item::RunEnded((task, 0), state.to_owned(), reason.to_owned()))]);
        story.closes(mine, 1);
        story.goes_on(task, 0);
        assert!(story.broken().contains(&Rule::SessionInbox), "{reason}");
    }
    let (mut story, mine, item) = cancelled();
    story
        .history
        .records
        .retain(|record| !matches!(&record.event, Event::Session(SessionCall { act: Act::Claim { .. }, .. })));
    story.reads(mine, 0, &[(4, item)]);
    assert_eq!(story.broken(), [Rule::SessionInbox]);
    let (mut story, mine, item) = cancelled();
    let Item::RunEnded(run, state, _) = item else { panic!("a run") };
    story.reads(mine, 0, &[(4, Item::RunEnded(run, state, "claim-expired".to_owned()))]);
    assert_eq!(story.broken(), [Rule::SessionInbox], "it was cancelled");
}

#[test]
fn claim_of_unknown_session_may_be_fruitless() {
    for (answer, broken) in [(Answer::Unknown, vec![]), (Answer::Done(Vec::new()), vec![Rule::Priority])] {
        let (mut story, _, _) = overtaken();
        let claim_of_low = story.history.records[2].start;
        let session = session(1);
        let call = SessionCall { queue: QUEUE, worker: MEMBER, act: Act::Claim { session, answer }, clock: 0 };
        story.at(claim_of_low - 1, claim_of_low + 1, Event::Session(call));
        assert_eq!(story.broken(), broken);
    }
}
