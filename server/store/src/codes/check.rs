//! Compares the numbers of a statement with the enums that they encode.

use std::collections::BTreeSet;
use std::fmt::Debug;

use tenure_api::states::{
    DelayedBy, Delivery, EndedBy, Priority, ReasonCreated, ReasonResolved, RunState, SessionEnd, StorageType,
    TaskCommand, TaskState, WorkerCommand,
};

use super::lexer::{Token, tokens};
use super::{Blob, Item, State};
use tenure_domain::events::{Kind, note};
use tenure_domain::message::DEQUEUES_ALARMING;
use tenure_domain::policy::ending::{FREE_RUNS_MAX, RUN_LAST};
use tenure_domain::policy::hold::{BACKOFF_MOST, Hold, LOSSES_FREE};
use tenure_domain::policy::late;
use tenure_domain::policy::refile::Stage;
use tenure_domain::policy::terms::Traits;

/// Greater than any code.
const CODES_END: i16 = 100;
/// Words for plain numbers.
const PLAIN: [&str; 5] = ["run", "seq", "ord", "count", "id"];
/// Columns with plain numbers.
const COUNTS: [&str; 3] = ["retries_left", "looks", "pending"];
/// Columns with codes, and the enums of each, one per table.
pub(super) const COLUMNS: [(&str, &[&str]); 11] = [
    ("state", &["State", "RunState", "Blob"]),
    ("kind", &["Kind", "Item"]),
    ("priority", &["Priority"]),
    ("reason_created", &["ReasonCreated"]),
    ("reason_resolved", &["ReasonResolved"]),
    ("storage_type", &["StorageType"]),
    ("hold", &["Hold"]),
    ("refile_stage", &["Stage"]),
    ("ended_by", &["EndedBy"]),
    ("end_reason", &["SessionEnd"]),
    ("command", &["WorkerCommand", "TaskCommand"]),
];
pub(super) const COMPARISONS: [&str; 6] = ["=", "<>", "<", ">", "<=", ">="];

pub(super) type Codes = BTreeSet<i64>;

fn variants<T: Debug>(from_code: fn(i16) -> Option<T>) -> Vec<(String, i64)> {
    (0..CODES_END).filter_map(|code| Some((format!("{:?}", from_code(code)?), i64::from(code)))).collect()
}

fn traits() -> Vec<(String, i64)> {
    [
        ("DELIVERY", Traits::DELIVERY.into()),
        ("RETRY_DELAY", Traits::RETRY_DELAY.into()),
        ("OWN_COMPLETE_TIME", Traits::OWN_COMPLETE_TIME.into()),
        ("WAITS_AGAIN", Traits::WAITS_AGAIN.into()),
        ("DELAYED", Traits::DELAYED.into()),
        ("DELAYED_SHIFT", Traits::DELAYED_SHIFT.into()),
        ("WEIGHED", Traits::WEIGHED.into()),
        ("PARTITIONED", Traits::PARTITIONED.into()),
        ("RETRY_FAILED", Traits::RETRY_FAILED.into()),
    ]
    .map(|(name, bits)| (name.to_owned(), bits))
    .into()
}

fn limit(name: &str) -> Option<i64> {
    Some(match name {
        "DEQUEUES_ALARMING" => DEQUEUES_ALARMING.into(),
        "FREE_RUNS_MAX" => FREE_RUNS_MAX.into(),
        "RUN_LAST" => RUN_LAST.into(),
        "LOSSES_FREE" => LOSSES_FREE.into(),
        "BACKOFF_MOST" => BACKOFF_MOST.num_seconds(),
        "note::KIND" => note::KIND.into(),
        _ => return None,
    })
}

fn codes_where<T>(from_code: fn(i16) -> Option<T>, of: impl Fn(T) -> bool) -> Codes {
    (0..CODES_END).filter(|&code| from_code(code).is_some_and(&of)).map(i64::from).collect()
}

pub(super) fn words(name: &str) -> Vec<(String, i64)> {
    match name {
        "State" => variants(State::from_code),
        "Blob" => variants(Blob::from_code),
        "Kind" => variants(Kind::from_code),
        "Priority" => variants(Priority::from_code),
        "RunState" => variants(RunState::from_code),
        "TaskState" => variants(TaskState::from_code),
        "ReasonCreated" => variants(ReasonCreated::from_code),
        "ReasonResolved" => variants(ReasonResolved::from_code),
        "StorageType" => variants(StorageType::from_code),
        "Delivery" => variants(Delivery::from_code),
        "DelayedBy" => variants(DelayedBy::from_code),
        "EndedBy" => variants(EndedBy::from_code),
        "SessionEnd" => variants(SessionEnd::from_code),
        "WorkerCommand" => variants(WorkerCommand::from_code),
        "TaskCommand" => variants(TaskCommand::from_code),
        "Item" => variants(Item::from_code),
        "Hold" => variants(Hold::from_code),
        "Traits" => traits(),
        "Stage" => variants(Stage::from_code),
        _ => Vec::new(),
    }
}

fn kind_resolves(kind: Kind) -> bool {
    match kind {
        Kind::Completed | Kind::Failed | Kind::Exception => true,
        Kind::Created
        | Kind::Claimed
        | Kind::Retried
        | Kind::Defined
        | Kind::Scheduled
        | Kind::Reprioritised
        | Kind::GroupResolved
        | Kind::GroupSealed
        | Kind::GroupReprioritised
        | Kind::ArtifactCreated
        | Kind::RetriedFailed => false,
    }
}

fn kind_is_retried(kind: Kind) -> bool {
    match kind {
        Kind::Retried | Kind::RetriedFailed => true,
        Kind::Created
        | Kind::Claimed
        | Kind::Completed
        | Kind::Failed
        | Kind::Exception
        | Kind::Defined
        | Kind::Scheduled
        | Kind::Reprioritised
        | Kind::GroupResolved
        | Kind::GroupSealed
        | Kind::GroupReprioritised
        | Kind::ArtifactCreated => false,
    }
}

fn kind_resolves_badly(kind: Kind) -> bool {
    kind != Kind::Completed && kind_resolves(kind)
}

/// Returns the codes of a group. Each lists all variants, so that a new one does not compile
/// without a decision.
pub(super) fn group(name: &str, group: &str) -> Option<Codes> {
    let state_is_open = |state| match state {
        State::Unscheduled | State::Unresolved => true,
        State::Completed | State::Failed | State::Exception => false,
    };
    let run_has_ended = |state| match state {
        RunState::Completed | RunState::Failed | RunState::Exception => true,
        RunState::Pending | RunState::Running => false,
    };
    let reason_is_tried_again = |reason| match reason {
        ReasonResolved::Failed
        | ReasonResolved::ClaimExpired
        | ReasonResolved::WorkerShutdown
        | ReasonResolved::IntermittentTask => true,
        ReasonResolved::Completed
        | ReasonResolved::DeadlineExceeded
        | ReasonResolved::Canceled
        | ReasonResolved::MalformedPayload
        | ReasonResolved::ResourceUnavailable
        | ReasonResolved::InternalError
        | ReasonResolved::Superseded => false,
    };
    Some(match (name, group) {
        ("ReasonResolved", "tried again") => codes_where(ReasonResolved::from_code, reason_is_tried_again),
        // Such runs do not count as failures for the delay of the next run.
        ("EndedBy", "no failure") => codes_where(EndedBy::from_code, |by| match by {
            EndedBy::Undelivered | EndedBy::Released => true,
            EndedBy::Lease
            | EndedBy::SessionEnded
            | EndedBy::WorkerRemoved
            | EndedBy::NotAccepted
            | EndedBy::CompleteTime
            | EndedBy::SchedulerReplaced
            | EndedBy::LateResult => false,
        }),
        // Matches `session::is_item` of the rules.
        ("EndedBy", "unknown to the worker") => codes_where(EndedBy::from_code, |by| match by {
            EndedBy::Lease | EndedBy::CompleteTime | EndedBy::SchedulerReplaced => true,
            EndedBy::Undelivered
            | EndedBy::Released
            | EndedBy::SessionEnded
            | EndedBy::WorkerRemoved
            | EndedBy::NotAccepted
            | EndedBy::LateResult => false,
        }),
        ("EndedBy", "may count late") => codes_where(EndedBy::from_code, late::may_count),
        ("State", "open") => codes_where(State::from_code, state_is_open),
        ("State", "resolved") => codes_where(State::from_code, move |state| !state_is_open(state)),
        ("State", "resolved badly") => {
            codes_where(State::from_code, move |state| state != State::Completed && !state_is_open(state))
        }
        ("Kind", "retried") => codes_where(Kind::from_code, kind_is_retried),
        ("Kind", "resolved") => codes_where(Kind::from_code, kind_resolves),
        ("Kind", "resolved badly") => codes_where(Kind::from_code, kind_resolves_badly),
        ("Kind", "of failed runs") => {
            codes_where(Kind::from_code, |kind| kind_resolves_badly(kind) || kind_is_retried(kind))
        }
        // Input of the dependency pass: ends of required tasks, and new dependent tasks.
        ("Kind", "settles") => codes_where(Kind::from_code, move |kind| kind == Kind::Defined || kind_resolves(kind)),
        ("RunState", "ended") => codes_where(RunState::from_code, run_has_ended),
        ("Blob", "whole or to be") => codes_where(Blob::from_code, |state| match state {
            Blob::Uploading | Blob::Current => true,
            Blob::Dropped => false,
        }),
        (_, "all") => {
            Some(words(name).into_iter().map(|(_, code)| code).collect()).filter(|all: &Codes| !all.is_empty())?
        }
        _ => return None,
    })
}

fn holds(operator: &str, value: i64, numbers: &Codes) -> bool {
    let of = |test: fn(i64, i64) -> bool| numbers.iter().any(|&number| test(value, number));
    match operator {
        "<" => of(|value, number| value < number),
        ">" => of(|value, number| value > number),
        "<=" => of(|value, number| value <= number),
        ">=" => of(|value, number| value >= number),
        _ => numbers.contains(&value),
    }
}

/// Returns an error if the comment does not match these numbers, which are compared with `column`.
pub(super) fn compare(comment: &str, operator: &str, column: &str, numbers: &Codes) -> Result<(), String> {
    let allowed = COLUMNS.iter().find(|(name, _)| *name == column).map(|(_, enums)| *enums);
    if PLAIN.contains(&comment) {
        return if allowed.is_none() { Ok(()) } else { Err(format!("{column} holds codes, not a {comment}")) };
    }
    if let Some(expected) = limit(comment) {
        return if numbers.contains(&expected) { Ok(()) } else { Err(format!("it is {expected}")) };
    }
    let ordered = ["<", ">", "<=", ">="].contains(&operator);
    let (name, expected) = if let Some((name, variant)) = comment.split_once("::") {
        let code = words(name).into_iter().find(|(word, _)| word == variant).map(|(_, code)| code);
        (name, Codes::from([code.ok_or("there is no such variant")?]))
    } else if let Some((name, members)) = comment.split_once(": ") {
        (name, group(name, members).ok_or("there is no such group")?)
    } else {
        return Err("it names neither a variant nor a group".to_owned());
    };
    if allowed.is_some_and(|allowed| !allowed.contains(&name)) {
        return Err(format!("{column} does not hold a {name}"));
    }
    let found: Codes = if ordered {
        words(name).into_iter().map(|(_, code)| code).filter(|&code| holds(operator, code, numbers)).collect()
    } else {
        numbers.clone()
    };
    if found == expected { Ok(()) } else { Err(format!("it means {expected:?}, the statement has {found:?}")) }
}

/// Parses a list or range of numbers after this bracket, and returns its end.
pub(super) fn list(tokens: &[Token], open: usize) -> Option<(Codes, usize)> {
    let mut numbers = Vec::new();
    let mut at = open + 1;
    while let Some(Token::Number(number)) = tokens.get(at) {
        numbers.push(*number);
        let next = tokens.get(at + 1)?;
        if next.is_sign(")") || next.is_sign("]") {
            let range = open > 0 && tokens[open - 1].word() == "generate_series";
            let codes = if range { (numbers[0]..=*number).collect() } else { numbers.into_iter().collect() };
            return Some((codes, at + 1));
        }
        at += if next.is_sign(",") { 2 } else { return None };
    }
    None
}

/// True if the context of a number shows that it is no code.
fn is_plain(tokens: &[Token], at: usize) -> bool {
    let before = |distance: usize| at.checked_sub(distance).and_then(|place| tokens.get(place));
    let is_arithmetic = |token: &Token| ["+", "-", "*", "/"].iter().any(|sign| token.is_sign(sign));
    let Some(previous) = before(1) else { return false };
    if is_arithmetic(previous) || tokens.get(at + 1).is_some_and(is_arithmetic) {
        return true;
    }
    if ["limit", "offset"].contains(&previous.word()) {
        return true;
    }
    if COMPARISONS.iter().any(|sign| previous.is_sign(sign)) {
        // The comment after a parameter is its name.
        let named = matches!(before(2), Some(Token::Comment(_))) && before(3) == Some(&Token::Parameter);
        return before(2).is_some_and(|of| {
            named
                || *of == Token::Parameter
                || COUNTS.contains(&of.word())
                || (of.is_sign(")") && is_call_of(tokens, at - 2, "count"))
        });
    }
    previous.is_sign(",") && is_call_of(tokens, at, "coalesce")
}

/// True if the innermost open bracket is a call of this function.
fn is_call_of(tokens: &[Token], at: usize, function: &str) -> bool {
    let mut depth = 0;
    for place in (1..at).rev() {
        if tokens[place].is_sign(")") {
            depth += 1;
        } else if tokens[place].is_sign("(") && depth == 0 {
            return tokens[place - 1].word() == function;
        } else if tokens[place].is_sign("(") {
            depth -= 1;
        }
    }
    false
}

/// Returns the column that a number is compared with, and the operator. For `CASE w.kind WHEN 7`,
/// the column is `kind`.
fn compared(tokens: &[Token], at: usize) -> (&str, &str) {
    let word = |place: Option<usize>| place.map_or("", |place| tokens[place].word());
    match at.checked_sub(1).map(|place| &tokens[place]) {
        Some(Token::Sign(sign)) if COMPARISONS.contains(&sign.as_str()) => (sign, word(at.checked_sub(2))),
        Some(Token::Word(keyword)) if keyword == "in" => ("", word(at.checked_sub(2))),
        Some(Token::Word(keyword)) if keyword == "when" && word(at.checked_sub(3)) == "case" => {
            ("", word(at.checked_sub(2)))
        }
        _ => ("", ""),
    }
}

pub(super) fn faults(sql: &str) -> Vec<String> {
    let tokens = tokens(sql);
    let mut faults = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let (numbers, end) = match &tokens[at] {
            Token::Number(number) => (Codes::from([*number]), at),
            Token::Array(numbers) => (numbers.iter().copied().collect(), at),
            Token::Sign(sign) if sign == "(" || sign == "[" => match list(&tokens, at) {
                Some(list) if !list.0.is_empty() => list,
                _ => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        let (operator, column) = compared(&tokens, at);
        let place = format!("{:?}", &tokens[at.saturating_sub(4)..(end + 3).min(tokens.len())]);
        match tokens.get(end + 1) {
            Some(Token::Comment(comment)) => {
                if let Err(fault) = compare(comment, operator, column, &numbers) {
                    faults.push(format!("/* {comment} */: {fault}, in {place}"));
                }
            }
            _ if at == end && is_plain(&tokens, at) => {}
            _ => faults.push(format!("{numbers:?} has no comment that names it, in {place}")),
        }
        at = end + 1;
    }
    faults
}
