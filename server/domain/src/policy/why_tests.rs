use super::*;
use tenure_api::states::ReasonResolved;

const NOW: i64 = 1_000;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

fn id(text: &str) -> TaskId {
    text.parse().unwrap()
}

fn task() -> TaskId {
    id("9HrBC1jMQ3KlZw4CssPUeQ")
}

fn other() -> TaskId {
    id("fN1SbArXTPSVFNUvaOlinQ")
}

fn facts(state: StateFacts, paused: Option<Paused>) -> Facts {
    Facts { task: task(), state, paused, share: None, now: at(NOW) }
}

fn paused() -> Paused {
    Paused { since: at(NOW - 5), by: "ann".into(), reason: Some("disk".into()), until: Some(at(NOW + 60)) }
}

fn session() -> SessionId {
    "b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10".parse().unwrap()
}

fn worker() -> WorkerName {
    WorkerName { worker_group: "g".into(), worker_id: "w".into() }
}

fn code(reason: &Reason) -> &'static str {
    match reason {
        Reason::Dependencies { .. } => "dependencies",
        Reason::Delay { .. } => "delay",
        Reason::Waiting { .. } => "waiting",
        Reason::Assigned { .. } => "assigned",
        Reason::NoScheduler { .. } => "no-scheduler",
        Reason::NoSession { .. } => "no-session",
        Reason::NotAccepted { .. } => "not-accepted",
        Reason::AssignQueue => "assign-queue",
        Reason::PollLimited => "poll-limited",
        Reason::Paused { .. } => "paused",
        Reason::Reserved { .. } => "reserved",
        Reason::NoWorker { .. } => "no-worker",
        Reason::Partition { .. } => "partition",
        Reason::Behind { .. } => "behind",
        Reason::Running { .. } => "running",
        Reason::Resolved { .. } => "resolved",
    }
}

fn codes(answer: &WhyAnswer) -> Vec<&'static str> {
    let codes: Vec<&str> = answer.reasons.iter().map(code).collect();
    for (reason, code) in answer.reasons.iter().zip(&codes) {
        assert_eq!(serde_json::to_value(reason).unwrap()["code"], *code);
    }
    let words = words(answer);
    assert_eq!(words.len(), codes.len().max(1));
    assert!(words.iter().all(|sentence| sentence.ends_with('.')), "{words:?}");
    codes
}

#[test]
fn ready_run_of_divided_queue_names_its_share() {
    let share = ShareFacts { slot: 7, index: Some(2), member: Some("m".into()), state: PartitionState::Active };
    let divided = |held: Held| Facts { share: Some(share.clone()), ..facts(pending(held, vec![worker()]), None) };
    for (names, member) in [(Names::Shown, Some("m".to_owned())), (Names::Hidden, None)] {
        let answer = why(&divided(Held::Ready), names);
        assert_eq!(codes(&answer).last(), Some(&"partition"));
        let expected = Reason::Partition { slot: 7, index: Some(2), member, state: PartitionState::Active };
        assert_eq!(answer.reasons.last(), Some(&expected));
        assert!(answer.ready);
    }
    let delayed = Held::Delayed(Delayed { until: at(NOW + 9), by: DelayedBy::Delay });
    assert_eq!(codes(&why(&divided(delayed), Names::Shown)), ["delay"]);
}

/// Every combination of facts about a pending run.
#[test]
fn pending_run_names_exactly_its_reasons() {
    let delays = std::iter::once(None).chain(DelayedBy::ALL.iter().map(|&by| Some(Delayed { until: at(NOW + 9), by })));
    for delayed in delays {
        for reserved in [None, Some(NOW - 1), Some(NOW), Some(NOW + 1)] {
            for pause in [None, Some(paused())] {
                for before in [0, 1, BEFORE_COUNTED_MAX] {
                    for asking in [vec![], vec![worker(); 12]] {
                        for (last_asked, quarantined) in [(None, 0), (Some(at(NOW - 90)), 0), (Some(at(NOW)), 3)] {
                            let asked = asking.clone();
                            let workers = Workers { last_asked, asking: asked, quarantined, ..Workers::default() };
                            let state = StateFacts::Pending {
                                run: RunId::FIRST,
                                held: delayed.map_or(Held::Ready, Held::Delayed),
                                reserved_until: reserved.map(at),
                                before,
                                workers,
                            };
                            let facts = facts(state, pause.clone());
                            let ready = delayed.is_none();
                            let expected: Vec<&str> = [
                                (!ready).then_some("delay"),
                                pause.is_some().then_some("paused"),
                                (ready && reserved == Some(NOW + 1)).then_some("reserved"),
                                asking.is_empty().then_some("no-worker"),
                                (ready && before > 0).then_some("behind"),
                            ]
                            .into_iter()
                            .flatten()
                            .collect();
                            for names in [Names::Shown, Names::Hidden] {
                                let answer = why(&facts, names);
                                assert_eq!(codes(&answer), expected, "{facts:?}");
                                assert_eq!((answer.state, answer.run_id), (TaskState::Pending, Some(RunId::FIRST)));
                                assert_eq!(answer.ready, ready, "even in a paused queue");
                                assert_eq!(answer.position, ready.then_some(before + 1));
                                let shown = names == Names::Shown && ready && pause.is_none();
                                let named = shown.then(|| asking.len().min(WORKERS_SHOWN_MAX));
                                assert_eq!(answer.claimable_by.map(|workers| workers.len()), named);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn pending(held: Held, asking: Vec<WorkerName>) -> StateFacts {
    let workers = Workers { asking, ..Workers::default() };
    StateFacts::Pending { run: RunId::FIRST, held, reserved_until: Some(at(NOW + 1)), before: 3, workers }
}

/// Every combination of sessions, of a session that did not accept the run, and of requesting
/// workers.
#[test]
fn held_run_names_limit_or_session() {
    let waiting = |waiting| Held::Waiting(Box::new(waiting));
    let full = Waiting { key: Some("acme".into()), slots: Some((2, 2)), ..Waiting::default() };
    let rate = Waiting { total: Some((3, 1)), next_start: Some(at(NOW + 60)), ..Waiting::default() };
    let assigned = Assigned { to: Some((worker(), session())), since: Some(at(NOW)), accept_by: None };
    for (held, shown, hidden) in [
        (
            waiting(full),
            "It waits for a slot of its key \"acme\", which has 2.",
            "It waits for a slot of its key, which has 2.",
        ),
        (
            waiting(rate),
            "The rate allows the next start at 1970-01-01T00:17:40.000Z.",
            "The rate allows the next start at 1970-01-01T00:17:40.000Z.",
        ),
        (waiting(Waiting::default()), NEXT_DECISION, NEXT_DECISION),
        (
            Held::Assigned(assigned),
            "It was assigned to the session of worker g/w at 1970-01-01T00:16:40.000Z, which has not accepted it yet.",
            "It was assigned to the session of a worker at 1970-01-01T00:16:40.000Z, which has not accepted it yet.",
        ),
    ] {
        assert_eq!([Names::Shown, Names::Hidden].map(|names| held_words(&held, names)), [shown, hidden]);
    }
}

#[test]
fn waiting_run_names_cause_and_sessions() {
    let all = [
        (None, None),
        (Some(Sessions { live: 0, ..Sessions::default() }), Some(NoSession::NoneLive)),
        (Some(Sessions { live: 2, extended: 2, ..Sessions::default() }), Some(NoSession::AllExtended)),
        (Some(Sessions { live: 2, extended: 1, ..Sessions::default() }), Some(NoSession::NoneFree)),
        (Some(Sessions { live: 2, extended: 1, is_free: true, asked_without: true }), None),
    ];
    for (sessions, because) in all {
        for (asked_without, no_scheduler) in [(false, None), (true, None), (false, Some(0)), (true, Some(2))] {
            for not_accepted in [None, Some((worker(), session()))] {
                for pause in [None, Some(paused())] {
                    for asking in [vec![], vec![worker()]] {
                        let sessions = sessions.map(|sessions| Sessions { asked_without, ..sessions });
                        let not_accepted = not_accepted.clone();
                        let is_refused = not_accepted.is_some();
                        let waiting = Waiting { sessions, not_accepted, no_scheduler, before: 1, ..Waiting::default() };
                        let state = pending(Held::Waiting(Box::new(waiting)), asking.clone());
                        let answer = why(&facts(state, pause.clone()), Names::Hidden);
                        let expected: Vec<&str> = [
                            Some("waiting"),
                            pause.is_some().then_some("paused"),
                            no_scheduler.is_some().then_some("no-scheduler"),
                            because.is_some().then_some("no-session"),
                            is_refused.then_some("not-accepted"),
                            (because.is_some() && asked_without).then_some("assign-queue"),
                            (asking.is_empty() && sessions.is_none()).then_some("no-worker"),
                        ]
                        .into_iter()
                        .flatten()
                        .collect();
                        assert_eq!(codes(&answer), expected);
                        assert!(!answer.ready && answer.position.is_none() && answer.claimable_by.is_none());
                        let found = answer.reasons.iter().find_map(|reason| {
                            if let Reason::NoSession { because, .. } = reason { Some(*because) } else { None }
                        });
                        assert_eq!(found, because);
                        let found = answer.reasons.iter().find_map(|reason| {
                            if let Reason::NoScheduler { candidates } = reason { Some(*candidates) } else { None }
                        });
                        assert_eq!(found, no_scheduler);
                    }
                }
            }
        }
    }
}

#[test]
fn polled_queue_with_limits_is_named_while_no_worker_asks() {
    let free = Sessions { live: 1, is_free: true, ..Sessions::default() };
    for (sessions, asking, is_named) in [
        (None, vec![], true),
        (None, vec![worker()], false),
        (Some(Sessions::default()), vec![worker()], true),
        (Some(free), vec![], false),
    ] {
        for polled in [false, true] {
            let waiting = Waiting { polled, sessions, ..Waiting::default() };
            let state = pending(Held::Waiting(Box::new(waiting)), asking.clone());
            let answer = why(&facts(state, None), Names::Hidden);
            assert_eq!(codes(&answer).contains(&"poll-limited"), polled && is_named, "{answer:?}");
        }
    }
}

#[test]
fn names_of_others_require_scope() {
    let holder = SlotHolder { task_id: other(), run_id: RunId::FIRST, worker: Some(worker()) };
    for names in [Names::Shown, Names::Hidden] {
        let is_shown = names == Names::Shown;
        for (used, is_full) in [(1, false), (2, true)] {
            let waiting = Waiting {
                key: Some("acme".into()),
                slots: Some((2, used)),
                holders: vec![holder.clone(); HOLDERS_SHOWN_MAX + 1],
                preferred: Some((worker(), at(NOW + 5))),
                not_accepted: Some((worker(), session())),
                ..Waiting::default()
            };
            let answer = why(&facts(pending(Held::Waiting(Box::new(waiting)), vec![]), None), names);
            let Reason::Waiting { key, holders, preferred, preferred_until, .. } = &answer.reasons[0] else { panic!() };
            assert_eq!(key.is_some(), is_shown);
            assert_eq!(holders.as_ref().map(Vec::len), (is_shown && is_full).then_some(HOLDERS_SHOWN_MAX));
            assert_eq!((preferred.is_some(), preferred_until.is_some()), (is_shown, true));
            let Reason::NotAccepted { worker, session_id } = &answer.reasons[1] else { panic!() };
            assert_eq!((worker.is_some(), session_id.is_some()), (is_shown, is_shown));
        }
        for pause in [None, Some(paused())] {
            let assigned =
                Assigned { to: Some((worker(), session())), since: Some(at(1)), accept_by: Some(at(NOW + 1)) };
            let answer = why(&facts(pending(Held::Assigned(assigned), vec![]), pause.clone()), names);
            let expected: &[&str] = if pause.is_some() { &["assigned", "paused"] } else { &["assigned"] };
            assert_eq!(codes(&answer), expected);
            let Reason::Assigned { worker, session_id, accept_by, .. } = &answer.reasons[0] else { panic!() };
            assert_eq!((worker.is_some(), session_id.is_some()), (is_shown, is_shown));
            assert_eq!(accept_by.is_some(), pause.is_none(), "a pause suspends acceptTime");
        }
    }
}

#[test]
fn sentences_describe_wait() {
    let holder = |worker| SlotHolder { task_id: other(), run_id: RunId::FIRST, worker };
    let sentence_of = |waiting: Waiting| {
        let answer = why(&facts(pending(Held::Waiting(Box::new(waiting)), vec![worker()]), None), Names::Shown);
        words(&answer).remove(0)
    };
    let full = Waiting {
        key: Some("acme".into()),
        slots: Some((2, 2)),
        holders: vec![holder(Some(worker())), holder(None)],
        before: 1,
        keys_before: 2,
        refiling: true,
        ..Waiting::default()
    };
    assert_eq!(
        sentence_of(full),
        "It waits for a slot of its key \"acme\", which has 2: taken by fN1SbArXTPSVFNUvaOlinQ/0 (worker g/w), \
         fN1SbArXTPSVFNUvaOlinQ/0. 1 run of its key \"acme\" is before it. 2 other keys are before it. The policy of \
         its queue was changed and is still being applied to its runs."
    );
    let total = Waiting { slots: Some((5, 1)), total: Some((3, 3)), before: BEFORE_COUNTED_MAX, ..Waiting::default() };
    assert_eq!(
        sentence_of(total),
        "It waits for a slot of its queue, which has 3. At least 10000 runs of its key are before it."
    );
    let rate = Waiting { next_start: Some(at(60)), ..Waiting::default() };
    assert_eq!(sentence_of(rate), "The rate allows the next start at 1970-01-01T00:01:00.000Z.");
    let preferred = Waiting { preferred: Some((worker(), at(60))), ..Waiting::default() };
    assert_eq!(
        sentence_of(preferred),
        "It waits for worker g/w until 1970-01-01T00:01:00.000Z; then any worker may have it."
    );
    assert_eq!(
        sentence_of(Waiting {
            sessions: Some(Sessions { is_free: true, ..Sessions::default() }),
            ..Waiting::default()
        }),
        "It waits for the next admission decision of its queue."
    );
    for (reason, sentence) in [
        (
            Reason::Assigned { worker: None, session_id: None, since: None, accept_by: Some(at(60).into()) },
            "It was assigned to the session of a worker, which has not accepted it yet. If it is not accepted by \
             1970-01-01T00:01:00.000Z, another worker gets it.",
        ),
        (Reason::NotAccepted { worker: Some(worker()), session_id: None }, "Worker g/w did not accept it in time."),
        (
            Reason::NoScheduler { candidates: 0 },
            "No server schedules its queue: start a server with a --scheduler-weight above 0.",
        ),
        (
            Reason::NoScheduler { candidates: 1 },
            "The server that scheduled its queue is silent or has stopped; another one takes over within seconds.",
        ),
        (
            Reason::NoSession { because: NoSession::NoneLive, sessions: 0 },
            "Its queue assigns runs to sessions, and no worker has one: its workers must start sessions.",
        ),
        (
            Reason::PollLimited,
            "Its queue was polled for messages, but a queue with limits has none: its workers must call claimWork, \
             or start a session if it assigns runs.",
        ),
    ] {
        assert_eq!(super::sentence(&reason), sentence);
    }
}

#[test]
fn unscheduled_task_names_hopeless_dependencies() {
    let states = std::iter::once(None).chain(TaskState::ALL.iter().copied().map(Some));
    for state in states {
        for requires in [Requires::AllCompleted, Requires::AllResolved] {
            for required in [task(), other()] {
                for pause in [None, Some(paused())] {
                    let awaited = vec![AwaitedTask { task_id: required, state }; AWAITED_SHOWN_MAX + 1];
                    let unsatisfied = u32::try_from(awaited.len()).unwrap();
                    let facts = facts(
                        StateFacts::Unscheduled { unsatisfied, awaited, requires, name: Some("nightly".to_owned()) },
                        pause.clone(),
                    );
                    let badly = matches!(state, Some(TaskState::Failed | TaskState::Exception));
                    let expected =
                        required == task() || state.is_none() || (badly && requires == Requires::AllCompleted);
                    for names in [Names::Shown, Names::Hidden] {
                        let answer = why(&facts, names);
                        let both: &[&str] =
                            if pause.is_some() { &["dependencies", "paused"] } else { &["dependencies"] };
                        assert_eq!(codes(&answer), both);
                        assert!(!answer.ready && answer.run_id.is_none() && answer.position.is_none());
                        let Reason::Dependencies { unsatisfied: 101, tasks, never, name } = &answer.reasons[0] else {
                            panic!("{answer:?}");
                        };
                        assert_eq!(*never, expected, "{facts:?}");
                        assert_eq!(name.is_some(), names == Names::Shown);
                        let shown = tasks.as_ref().map(Vec::len);
                        assert_eq!(shown, (names == Names::Shown).then_some(AWAITED_SHOWN_MAX));
                    }
                }
            }
        }
    }
}

#[test]
fn author_and_reason_of_pause_require_scope() {
    let waits = || StateFacts::Unscheduled {
        unsatisfied: 1,
        awaited: Vec::new(),
        requires: Requires::AllCompleted,
        name: None,
    };
    for (names, by, reason) in [(Names::Shown, Some("ann"), Some("disk")), (Names::Hidden, None, None)] {
        let answer = why(&facts(waits(), Some(paused())), names);
        let expected = Reason::Paused {
            by: by.map(str::to_owned),
            since: at(NOW - 5).into(),
            reason: reason.map(str::to_owned),
            until: Some(at(NOW + 60).into()),
        };
        assert_eq!(answer.reasons[1], expected);
    }
}

#[test]
fn resolved_task_tells_its_failure() {
    let failure = |kind: Option<&str>, message: &str| {
        Some(Failure { message: message.into(), kind: kind.map(str::to_owned), exit_code: None })
    };
    let claim = || EndedClaim { worker: worker(), started: at(NOW - 4), resolved: at(NOW - 1) };
    let malformed = Outcome::Exception(ReasonResolved::MalformedPayload);
    for (outcome, claim, names, failure, sentence) in [
        (
            Outcome::Failed,
            Some(claim()),
            Names::Shown,
            failure(None, "exit code 7"),
            "It failed on g/w after 3 s: exit code 7.",
        ),
        (
            Outcome::Failed,
            Some(claim()),
            Names::Hidden,
            failure(Some("ValueError"), "bad port."),
            "It failed after 3 s: ValueError: bad port.",
        ),
        (Outcome::Failed, None, Names::Shown, failure(None, "gone"), "It failed: gone."),
        (Outcome::Failed, Some(claim()), Names::Shown, None, "It has ended as failed (failed)."),
        (
            malformed,
            Some(claim()),
            Names::Shown,
            failure(None, "no command"),
            "It has ended as exception (malformed-payload) on g/w after 3 s: no command.",
        ),
    ] {
        let left = Allowance { retries_left: 0, free_runs: 0, requeues: 0, losses: 0 };
        let state = StateFacts::Resolved { run: RunId::FIRST, outcome, ended_by: None, claim, left };
        let answer = with_failure(why(&facts(state, None), names), failure);
        assert_eq!(codes(&answer), ["resolved"]);
        assert_eq!(words(&answer), [sentence]);
    }
}

#[test]
fn running_or_resolved_task_has_one_reason() {
    for pause in [None, Some(paused())] {
        for complete_by in [None, Some(at(NOW + 3))] {
            for session in [None, Some(session())] {
                for names in [Names::Shown, Names::Hidden] {
                    let state = StateFacts::Running {
                        run: RunId::FIRST,
                        worker: worker(),
                        since: at(NOW - 1),
                        taken_until: at(NOW + 1),
                        complete_by,
                        session,
                        live_log: Some(LiveLogSoFar { bytes: 7 }),
                    };
                    let answer = why(&facts(state, pause.clone()), names);
                    assert_eq!(codes(&answer), ["running"], "a pause does not affect claims");
                    assert_eq!((answer.state, answer.ready), (TaskState::Running, false));
                    let Reason::Running { worker_group, worker_id, session_id, live_log, .. } = &answer.reasons[0]
                    else {
                        panic!("{answer:?}");
                    };
                    let is_shown = names == Names::Shown;
                    let named = worker_group.as_deref().zip(worker_id.as_deref());
                    assert_eq!(named, is_shown.then_some(("g", "w")));
                    assert_eq!(*session_id, session.filter(|_| is_shown));
                    assert_eq!(*live_log, Some(LiveLogSoFar { bytes: 7 }));
                }
            }
        }
        for outcome in [Outcome::Completed, Outcome::Failed, Outcome::Exception(ReasonResolved::ClaimExpired)] {
            for ended_by in std::iter::once(None).chain(EndedBy::ALL.iter().copied().map(Some)) {
                let left = Allowance { retries_left: 0, free_runs: 150, requeues: 0, losses: 4 };
                let claim = EndedClaim { worker: worker(), started: at(NOW - 4), resolved: at(NOW - 1) };
                let state =
                    StateFacts::Resolved { run: RunId::FIRST, outcome, ended_by, claim: Some(claim.clone()), left };
                let answer = why(&facts(state, pause.clone()), Names::Hidden);
                assert_eq!(codes(&answer), ["resolved"]);
                assert_eq!(answer.state, outcome.state().into());
                let expected = Reason::Resolved {
                    outcome: outcome.state(),
                    reason_resolved: outcome.reason(),
                    ended_by,
                    losses: 4,
                    free_runs_left: 50,
                    worker_group: None,
                    worker_id: None,
                    started: Some(claim.started.into()),
                    resolved: Some(claim.resolved.into()),
                    failure: None,
                };
                assert_eq!(answer.reasons, [expected]);
            }
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one reason after the other")]
fn sentences_match_reasons() {
    let time = |seconds| Timestamp::new(at(seconds));
    let awaited = |task_id, state| AwaitedTask { task_id, state };
    for (reason, sentence) in [
        (
            Reason::Dependencies {
                unsatisfied: 2,
                tasks: Some(vec![awaited(other(), Some(TaskState::Failed)), awaited(task(), None)]),
                never: true,
                name: None,
            },
            "It waits for 2 tasks: fN1SbArXTPSVFNUvaOlinQ (failed), 9HrBC1jMQ3KlZw4CssPUeQ (expired). One of them \
             can never be satisfied: schedule this task by hand, rerun that dependency, or cancel this task.",
        ),
        (Reason::Dependencies { unsatisfied: 1, tasks: None, never: false, name: None }, "It waits for 1 task."),
        (
            Reason::Dependencies {
                unsatisfied: 1,
                tasks: Some(vec![awaited(other(), Some(TaskState::Running))]),
                never: false,
                name: Some("nightly".to_owned()),
            },
            "It waits for 1 task: fN1SbArXTPSVFNUvaOlinQ (running). Its unique name \"nightly\" is in use.",
        ),
        (
            Reason::Dependencies { unsatisfied: 0, tasks: Some(vec![]), never: false, name: None },
            "Its dependencies have ended; it is about to become pending.",
        ),
        (
            Reason::Delay { until: time(60), by: DelayedBy::Backoff },
            "It is delayed until 1970-01-01T00:01:00.000Z, because several workers in a row were lost while they \
             held it.",
        ),
        (
            Reason::Paused { by: Some("ann".into()), since: time(0), reason: Some("disk".into()), until: None },
            "Its queue was paused by ann at 1970-01-01T00:00:00.000Z (disk), until it is resumed.",
        ),
        (
            Reason::Paused { by: None, since: time(0), reason: None, until: Some(time(60)) },
            "Its queue was paused at 1970-01-01T00:00:00.000Z, until 1970-01-01T00:01:00.000Z.",
        ),
        (
            Reason::NoWorker { last_asked: Some(time(0)), quarantined: 2, frozen: 0 },
            "No eligible worker has asked for work in the last minute; 2 quarantined workers did.",
        ),
        (
            Reason::NoWorker { last_asked: Some(time(0)), quarantined: 2, frozen: 1 },
            "No eligible worker has asked for work in the last minute; 2 quarantined workers and 1 frozen worker \
             did.",
        ),
        (
            Reason::NoWorker { last_asked: Some(time(0)), quarantined: 0, frozen: 0 },
            "No eligible worker has asked for work in the last minute; the last one did at 1970-01-01T00:00:00.000Z.",
        ),
        (
            Reason::Partition { slot: 7, index: Some(2), member: Some("m".into()), state: PartitionState::Draining },
            "Its queue is divided by a partition group: slot 7 is in share 2, of member m. Shares are about to move.",
        ),
        (
            Reason::Partition { slot: 7, index: Some(2), member: None, state: PartitionState::Active },
            "Its queue is divided by a partition group: slot 7 is in share 2.",
        ),
        (
            Reason::Partition { slot: 7, index: None, member: None, state: PartitionState::Waiting },
            "Its queue is divided by a partition group: slot 7 is in no share yet.",
        ),
        (Reason::Behind { runs: 1 }, "1 other run of its queue is claimed first."),
        (Reason::Behind { runs: 10_000 }, "At least 10000 other runs of its queue are claimed first."),
        (
            Reason::Running {
                worker_group: None,
                worker_id: None,
                since: time(0),
                taken_until: time(60),
                complete_by: Some(time(90)),
                session_id: None,
                live_log: Some(LiveLogSoFar { bytes: 12 }),
            },
            "A worker has held it since 1970-01-01T00:00:00.000Z; the claim expires at 1970-01-01T00:01:00.000Z \
             unless it is renewed, and at 1970-01-01T00:01:30.000Z at the latest. Its log has 12 bytes so far.",
        ),
        (
            Reason::Running {
                worker_group: Some("g".into()),
                worker_id: Some("w".into()),
                since: time(0),
                taken_until: time(60),
                complete_by: None,
                session_id: Some(session()),
                live_log: None,
            },
            "Worker g/w has held it since 1970-01-01T00:00:00.000Z; the claim expires at 1970-01-01T00:01:00.000Z \
             unless it is renewed. It ends with session b4cf1f7d-1b1c-4a8b-9d3f-5f0f4d6f2a10.",
        ),
        (
            Reason::Resolved {
                outcome: RunState::Exception,
                reason_resolved: ReasonResolved::ClaimExpired,
                ended_by: Some(EndedBy::CompleteTime),
                losses: 1,
                free_runs_left: 0,
                worker_group: Some("g".into()),
                worker_id: Some("w".into()),
                started: Some(time(0)),
                resolved: Some(time(60)),
                failure: None,
            },
            "It has ended as exception (claim-expired, ended by complete-time). Its worker was lost with it.",
        ),
    ] {
        assert_eq!(super::sentence(&reason), sentence);
    }
    let workers = Workers { last_asked: Some(at(NOW)), asking: vec![worker()], ..Workers::default() };
    let place = StateFacts::Pending { run: RunId::FIRST, held: Held::Ready, reserved_until: None, before: 0, workers };
    let answer = why(&facts(place, None), Names::Hidden);
    assert_eq!(words(&answer), ["Nothing holds it back: the next worker that asks for work gets it."]);
    assert_eq!(ASKED_WITHIN, TimeDelta::minutes(1), "the sentences mention one minute");
}
