//! Creates the tasks that applications have enqueued from SQL.
//!
//! Each server scans for rows that no earlier scan could see, remembers their ids, and handles them
//! in slices. A slice locks its rows without waiting, creates the tasks, and deletes, refuses or
//! puts off the rows in the same transaction. So any number of servers may run the pass, and a
//! killed one leaves its rows to the others. Rows that were put off are found by their time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use super::{PassReport, SLICE};
use crate::authority::Authority;
use crate::engine::Engine;
use crate::ops::enqueued::{Parts, Slice, create};
use crate::ops::guarded;
use tenure_domain::enqueue::{Attempt, Fate, Mark, fate};
use tenure_store::cached::Cached;
use tenure_store::enqueued::{self, Enqueued, LockedRows};
use tenure_store::failure::{Class, classify};
use tenure_store::session;

/// Refused rows that are kept.
pub const REFUSED_MAX: i64 = 10_000;
const REFUSED_DAYS: i32 = 30;
/// Rows per scan, and of each transaction that was open.
const SCAN_MAX: usize = 2_000;
/// Rows to choose a slice from: other servers hold locks on some of the first.
const LISTED_MAX: usize = 2 * SLICE as usize;
/// Bytes of bodies per slice.
const BYTES_MAX: i64 = 16 << 20;
/// Maximum age of the mark: transaction ids may go back unnoticed.
const KEPT: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct State {
    mark: Mark,
    since: Option<Instant>,
    /// Rows that were scanned, and not handled by this server.
    known: BTreeSet<i64>,
}

pub struct EnqueuedPass {
    authority: Arc<dyn Authority>,
    state: Cached<State>,
}

impl EnqueuedPass {
    pub(super) fn new(engine: &Engine, authority: Arc<dyn Authority>) -> Self {
        let pass = Self { authority, state: Cached::default() };
        let state = pass.state.clone();
        engine.remembered.add("enqueued tasks", move || state.drop_all());
        pass
    }

    pub async fn run(&self, engine: &Engine) -> Result<PassReport, sqlx::Error> {
        if engine.facts.enqueue_roles.get().is_empty() {
            return Ok(PassReport::default());
        }
        let mut conn = engine.background_pool.acquire().await?;
        let waiting = self.look(engine, &mut conn).await?;
        let new = LISTED_MAX - waiting.len();
        let mut ids: Vec<i64> = self.state.read(|state| state.known.iter().copied().take(new).collect());
        ids.extend(waiting);
        if ids.is_empty() {
            return Ok(PassReport::default());
        }
        let since = self.state.epoch();
        let handled = match self.handle(engine, &mut conn, &ids).await {
            Err(error) if matches!(classify(&error), Class::BadData | Class::Contention) => {
                self.one_by_one(engine, &mut conn, &ids).await?
            }
            handled => handled?,
        };
        let more = self.state.update(since, |state| {
            for id in ids.iter().filter(|id| !handled.left.contains(id)) {
                state.known.remove(id);
            }
            !state.known.is_empty()
        });
        let next_in = (handled.settled > 0 && more == Some(true)).then_some(Duration::ZERO);
        // Of a whole slice the rest was left for the next one.
        let lost_race = if handled.settled > 0 { 0 } else { handled.left.len() };
        Ok(PassReport {
            found: handled.settled + lost_race,
            done: handled.settled,
            lost_race,
            next_in,
            ..PassReport::default()
        })
    }

    /// Scans for new rows, unless enough are known. Returns waiting rows that are due: at most half
    /// of a slice, so that they do not hold up new ones.
    async fn look(&self, engine: &Engine, conn: &mut PgConnection) -> Result<Vec<i64>, sqlx::Error> {
        let since = self.state.epoch();
        let begun = self.state.read(|state| state.since);
        if begun.is_some_and(|begun| begun.elapsed() > KEPT) {
            self.state.update(since, |state| *state = State::default());
        }
        let (known, mark) = self.state.read(|state| (state.known.len(), state.mark.clone()));
        let mut transaction = conn.begin().await?;
        session::plan_as_hot(&mut transaction).await?;
        let from = engine.due_marks.get().enqueued;
        let waiting = enqueued::list_due(&mut transaction, from, SLICE / 2).await?;
        if known < LISTED_MAX {
            let scan = enqueued::scan(&mut transaction, &mark, SCAN_MAX).await?;
            self.state.update(since, |state| {
                state.since.get_or_insert_with(Instant::now);
                state.known.extend(scan.rows.iter().map(|row| row.1));
                state.mark = mark.advance(&scan);
            });
        }
        transaction.commit().await?;
        Ok(waiting)
    }

    /// Handles up to a slice of these rows in one transaction.
    async fn handle(&self, engine: &Engine, conn: &mut PgConnection, ids: &[i64]) -> Result<Handled, sqlx::Error> {
        let mut transaction = conn.begin().await?;
        session::plan_as_hot(&mut transaction).await?;
        if ids.len() == 1 {
            // Perhaps after a slice that met a lock: each of its rows may meet it again.
            session::hardly_wait(&mut transaction).await?;
        } else {
            // A stopped server must not keep the locks of groups, names and backlogs.
            session::idle_briefly(&mut transaction).await?;
        }
        let LockedRows { rows, left, now } = enqueued::lock(&mut transaction, ids, SLICE, BYTES_MAX).await?;
        let left = left.into_iter().collect();
        if rows.is_empty() {
            return Ok(Handled { settled: 0, left });
        }
        let slice = Slice { rows: &rows, now };
        let (facts, gate, sequenced) = (&engine.facts, &engine.gate, engine.sequencer.reached());
        let parts = Parts { facts, gate, authority: &*self.authority, sequenced };
        let mut settled = create(parts, &mut transaction, slice).await?;
        enqueued::settle(&mut transaction, &settled.fates).await?;
        engine.notifiers.commit(transaction, std::mem::take(&mut settled.effects)).await?;
        settled.count();
        report_refusals(&rows, &settled.fates);
        guarded::note_refusals(conn, &settled.refusals.iter().collect::<Vec<_>>()).await?;
        Ok(Handled { settled: settled.fates.len(), left })
    }

    /// A lock or the data of a row made the slice fail: each row is handled alone, so that it does
    /// not hold up the others.
    async fn one_by_one(&self, engine: &Engine, conn: &mut PgConnection, ids: &[i64]) -> Result<Handled, sqlx::Error> {
        let mut all = Handled::default();
        for &id in ids {
            let one = match self.handle(engine, conn, &[id]).await {
                Ok(handled) => handled,
                Err(error) => match classify(&error) {
                    Class::BadData => {
                        let reason = format!("the database refuses its data: {error}");
                        conclude(conn, id, &Attempt::Refused(reason)).await?
                    }
                    Class::Contention => conclude(conn, id, &Attempt::Locked).await?,
                    Class::Unavailable | Class::Fault => return Err(error),
                },
            };
            all.settled += one.settled;
            all.left.extend(one.left);
        }
        Ok(all)
    }
}

/// Purges refused rows.
pub async fn purge(engine: &Engine) -> Result<PassReport, sqlx::Error> {
    if engine.facts.enqueue_roles.get().is_empty() {
        return Ok(PassReport::default());
    }
    let mut conn = engine.background_pool.acquire().await?;
    let gone = enqueued::purge(&mut conn, REFUSED_DAYS, REFUSED_MAX, SLICE).await?;
    let done = usize::try_from(gone).unwrap_or(usize::MAX);
    Ok(PassReport { found: done, done, ..PassReport::default() })
}

#[derive(Default)]
struct Handled {
    settled: usize,
    /// Rows that exist and were not handled.
    left: BTreeSet<i64>,
}

/// Settles a row whose creation failed.
async fn conclude(conn: &mut PgConnection, id: i64, attempt: &Attempt) -> Result<Handled, sqlx::Error> {
    let mut transaction = conn.begin().await?;
    let LockedRows { rows, left, now } = enqueued::lock(&mut transaction, &[id], 1, BYTES_MAX).await?;
    let fates: Vec<(i64, Fate)> = rows.iter().map(|row| (row.id, fate(attempt.clone(), row.tries, now))).collect();
    enqueued::settle(&mut transaction, &fates).await?;
    transaction.commit().await?;
    report_refusals(&rows, &fates);
    Ok(Handled { settled: fates.len(), left: left.into_iter().collect() })
}

fn report_refusals(rows: &[Enqueued], fates: &[(i64, Fate)]) {
    for (row, (_, fate)) in rows.iter().zip(fates) {
        if let Fate::Refuse(error) = fate {
            metrics::counter!("tenure_enqueued_refused_total").increment(1);
            tracing::warn!(
                queue.id = row.queue,
                role = row.role,
                error,
                "a task that was enqueued from SQL was refused; `tenure enqueue refused` lists it"
            );
        }
    }
}
