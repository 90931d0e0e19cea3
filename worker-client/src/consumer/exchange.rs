//! Requests that report results and claim runs.
//!
//! A consumer without a source has two lanes. While the server works on one request, the next is
//! sent on the other lane as soon as many results wait. So neither side is idle. Fewer results wait
//! for the answer, as each request has a cost of its own.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tenure_api::work::RESULTS_MAX;

use super::inner::Inner;
use super::membership::Membership;
use super::outbox::{REPORT_TIMEOUT, Waiting};
use super::slots::Slots;
use super::source::{AnySource, Found};
use crate::{Error, RunResult, Worked};

/// Share of the slots whose results are worth a second request.
const SECOND_SHARE: usize = 3;
/// Least number of results of a second request.
const SECOND_MIN: usize = 16;

/// The last answer, and how many runs it was asked for.
pub(super) struct Exchanged {
    pub answer: Result<Vec<Found>, Error>,
    pub asked: usize,
}

struct Landed<'a> {
    lane: &'a mut dyn AnySource,
    /// Results without a verdict. None are left after the timeout.
    waiting: Vec<Waiting>,
    reported: usize,
    asked: usize,
    answer: Result<Worked, Error>,
}

type Flight<'a> = Pin<Box<dyn Future<Output = Landed<'a>> + Send + 'a>>;

/// Reports results and claims up to `room` runs. Goes on while results arrive faster than answers.
/// Jobs of earlier answers are started. None at a shutdown.
///
/// # Errors
/// A job says that the worker may not claim at all.
pub(super) async fn exchange<'a>(
    inner: &'a Arc<Inner>,
    mut lanes: Vec<&'a mut dyn AnySource>,
    slots: &mut Slots,
    terms: Membership,
    (results, room): (Vec<Waiting>, usize),
) -> Result<Option<Exchanged>, Error> {
    let capacity = inner.settings.capacity;
    let many = (capacity / SECOND_SHARE).clamp(SECOND_MIN, RESULTS_MAX);
    let Some(lane) = lanes.pop() else { return Ok(None) };
    let (mut reporting, mut claiming, mut failed) = (results.len(), room, None);
    let mut flights = FuturesUnordered::new();
    flights.push(send(inner, lane, results, room));
    inner.outbox.wake_at(many);
    loop {
        let landed = tokio::select! {
            biased;
            Some(landed) = flights.next() => Some(landed),
            () = inner.orders.shutdown.cancelled() => return Ok(None),
            () = inner.outbox.arrival(), if !lanes.is_empty() => None,
        };
        if let Some(Landed { lane, waiting, reported, asked, answer }) = landed {
            lanes.push(lane);
            (reporting, claiming) = (reporting - reported, claiming - asked);
            let found = match answer {
                Ok(worked) => settle(worked, waiting, slots),
                Err(error) => {
                    inner.outbox.hold(false);
                    failed = Some(error);
                    Vec::new()
                }
            };
            let is_last = flights.is_empty();
            if is_last && failed.is_none() {
                return Ok(Some(Exchanged { answer: Ok(found), asked }));
            }
            found.into_iter().for_each(|found| slots.begin(inner, terms, found));
            if is_last && let Some(error) = failed.take() {
                return Ok(Some(Exchanged { answer: Err(error), asked }));
            }
        }
        slots.collect()?;
        // The claim loop has more to do once all requests are answered.
        let goes_on = failed.is_none() && inner.may_start(terms) && !inner.given.is_waiting();
        if goes_on && let Some(lane) = lanes.pop() {
            let results = inner.outbox.take_many(many);
            let slots_left = capacity.saturating_add(reporting + results.len());
            let room = slots_left.saturating_sub(slots.taken() + claiming);
            if results.is_empty() || room == 0 {
                inner.outbox.put_back(results);
                lanes.push(lane);
            } else {
                (reporting, claiming) = (reporting + results.len(), claiming + room);
                flights.push(send(inner, lane, results, room));
            }
        }
    }
}

/// Sends one request. After a timeout only claims are awaited; the results, whose leases run on,
/// are reported separately.
fn send<'a>(inner: &'a Inner, lane: &'a mut dyn AnySource, mut waiting: Vec<Waiting>, asked: usize) -> Flight<'a> {
    let reported = waiting.len();
    Box::pin(async move {
        let results: Vec<RunResult> = waiting.iter().map(|waiting| waiting.result.clone()).collect();
        let answer = {
            let mut asking = lane.exchange(&results, asked);
            let mut late = std::pin::pin!(tokio::time::sleep(REPORT_TIMEOUT));
            loop {
                tokio::select! {
                    biased;
                    answer = &mut asking => break answer,
                    () = &mut late, if !waiting.is_empty() => {
                        waiting.clear();
                        inner.outbox.hold(false);
                    }
                }
            }
        };
        Landed { lane, waiting, reported, asked, answer }
    })
}

/// Passes verdicts to their jobs. Results without one are reported separately.
fn settle(worked: Worked, waiting: Vec<Waiting>, slots: &mut Slots) -> Vec<Found> {
    for (waiting, verdict) in waiting.into_iter().zip(worked.results) {
        if let Some(job) = waiting.answer(verdict) {
            slots.free(job);
        }
    }
    worked.claims.into_iter().map(Found::claimed).collect()
}
