//! Numbers of queues over time: `queue_minutes`.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tenure_api::states::ReasonResolved;
use tenure_domain::statistics::{Numbers, Step, place};

/// Key of the numbers of all queues without a row of their own.
pub const OTHER: i32 = 0;
/// Key of the numbers of all queues together, so that reading them costs no more than one queue.
pub const ALL: i32 = -1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// `task_queues.id`, [`OTHER`] or [`ALL`].
    pub queue: i32,
    /// Start of the step.
    pub minute: DateTime<Utc>,
    pub numbers: Numbers,
}

/// Adds numbers to the rows of a step. Two servers add up.
pub async fn add(conn: &mut PgConnection, step: Step, rows: &[Row]) -> Result<(), sqlx::Error> {
    let column = |number: fn(&Numbers) -> i64| rows.iter().map(|row| int4(number(&row.numbers))).collect::<Vec<i32>>();
    let list =
        |numbers: fn(&Numbers) -> &[i64]| rows.iter().map(|row| array(numbers(&row.numbers))).collect::<Vec<String>>();
    let [created, started, lost] =
        [column(|numbers| numbers.created), column(|numbers| numbers.started), column(|numbers| numbers.lost)];
    let [pending, claimed] = [column(|numbers| numbers.pending_most), column(|numbers| numbers.claimed_most)];
    let queues: Vec<i32> = rows.iter().map(|row| row.queue).collect();
    let minutes: Vec<DateTime<Utc>> = rows.iter().map(|row| row.minute).collect();
    let (waits, runs) = (list(|numbers| &numbers.waits), list(|numbers| &numbers.runs));
    let (reasons, ends): (Vec<String>, Vec<String>) = rows.iter().map(|row| reasons(&row.numbers)).unzip();
    sqlx::query!(
        r#"-- add_statistics
        INSERT INTO queue_minutes AS q (queue, step, minute, created, started, lost, pending_most, claimed_most, reasons,
                                        ends, waits, runs)
        SELECT i.queue, $12::smallint, i.minute, i.created, i.started, i.lost, i.pending_most, i.claimed_most, i.reasons::smallint[],
               i.ends::int[], i.waits::int[], i.runs::int[]
        FROM unnest($1::int[] /* queues */, $2::timestamptz[] /* minutes */, $3::int[] /* created */, $4::int[] /* started */,
                    $5::int[] /* lost */, $6::int[] /* pending_most */, $7::int[] /* claimed_most */, $8::text[] /* reasons */,
                    $9::text[] /* ends */, $10::text[] /* waits */, $11::text[] /* runs */)
            AS i(queue, minute, created, started, lost, pending_most, claimed_most, reasons, ends, waits, runs)
        -- In order, so that two servers cannot deadlock.
        ORDER BY i.queue, i.minute
        ON CONFLICT (queue, step, minute) DO UPDATE SET
            created = q.created + EXCLUDED.created,
            started = q.started + EXCLUDED.started,
            lost = q.lost + EXCLUDED.lost,
            pending_most = GREATEST(q.pending_most, EXCLUDED.pending_most),
            claimed_most = GREATEST(q.claimed_most, EXCLUDED.claimed_most),
            waits = (SELECT array_agg(u.here + u.more ORDER BY u.n)
                     FROM unnest(q.waits, EXCLUDED.waits) WITH ORDINALITY AS u(here, more, n)),
            runs = (SELECT array_agg(u.here + u.more ORDER BY u.n)
                    FROM unnest(q.runs, EXCLUDED.runs) WITH ORDINALITY AS u(here, more, n)),
            (reasons, ends) = (
                SELECT COALESCE(array_agg(s.reason ORDER BY s.reason), '{}'), COALESCE(array_agg(s.tasks ORDER BY s.reason), '{}')
                FROM (
                    SELECT u.reason, sum(u.tasks)::int AS tasks
                    FROM unnest(q.reasons || EXCLUDED.reasons, q.ends || EXCLUDED.ends) AS u(reason, tasks)
                    GROUP BY u.reason
                ) s
            )"#,
        &queues,
        &minutes,
        &created,
        &started,
        &lost,
        &pending,
        &claimed,
        &reasons,
        &ends,
        &waits,
        &runs,
        step.code()
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes up to `limit` of the oldest rows of a step, if they begin before this time, and returns
/// them.
pub async fn take(
    conn: &mut PgConnection,
    step: Step,
    before: DateTime<Utc>,
    limit: i64,
) -> Result<Vec<Row>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Stored,
        r#"-- take_statistics
        WITH old AS MATERIALIZED (
            SELECT m.queue, m.minute FROM queue_minutes m
            WHERE m.step = $1 AND m.minute < $2
            ORDER BY m.step, m.minute LIMIT $3 FOR UPDATE SKIP LOCKED
        )
        DELETE FROM queue_minutes m USING old
        WHERE m.queue = old.queue AND m.step = $1 AND m.minute = old.minute
        RETURNING m.queue, m.minute, m.created, m.started, m.lost, m.reasons, m.ends, m.waits, m.runs, m.pending_most,
                  m.claimed_most"#,
        step.code(),
        before,
        limit
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(Stored::row).collect())
}

/// Lists the numbers of a queue in this time, in rows of any step.
pub async fn list(
    conn: &mut PgConnection,
    queue: i32,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
) -> Result<Vec<(DateTime<Utc>, Numbers)>, sqlx::Error> {
    let steps = Step::ALL.map(Step::code);
    let rows = sqlx::query_as!(
        Stored,
        r#"-- list_statistics
        SELECT m.queue, m.minute, m.created, m.started, m.lost, m.reasons, m.ends, m.waits, m.runs, m.pending_most,
               m.claimed_most
        FROM queue_minutes m
        WHERE m.queue = $1 AND m.step = ANY($2) AND m.minute >= $3 AND m.minute < $4"#,
        queue,
        &steps as &[i16],
        from,
        to
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.minute, row.row().numbers)).collect())
}

struct Stored {
    queue: i32,
    minute: DateTime<Utc>,
    created: i32,
    started: i32,
    lost: i32,
    reasons: Vec<i16>,
    ends: Vec<i32>,
    waits: Vec<i32>,
    runs: Vec<i32>,
    pending_most: i32,
    claimed_most: i32,
}

impl Stored {
    fn row(self) -> Row {
        let mut numbers = Numbers {
            created: self.created.into(),
            started: self.started.into(),
            lost: self.lost.into(),
            pending_most: self.pending_most.into(),
            claimed_most: self.claimed_most.into(),
            ..Numbers::default()
        };
        let ends = self.reasons.into_iter().zip(self.ends);
        // A reason of a later release is left out.
        for (reason, tasks) in ends.filter_map(|(code, tasks)| Some((ReasonResolved::from_code(code)?, tasks))) {
            numbers.ends[place(reason)] += i64::from(tasks);
        }
        for (to, from) in [(&mut numbers.waits, self.waits), (&mut numbers.runs, self.runs)] {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.into());
        }
        Row { queue: self.queue, minute: self.minute, numbers }
    }
}

fn int4(number: i64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Writes numbers as an array of the database.
fn array(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(|&number| int4(number).to_string()).collect();
    format!("{{{}}}", numbers.join(","))
}

/// Writes the reasons that occurred, and the number of each.
fn reasons(numbers: &Numbers) -> (String, String) {
    let occurred = ReasonResolved::ALL.iter().filter(|reason| numbers.ends[place(**reason)] > 0);
    let (codes, ends): (Vec<i64>, Vec<i64>) =
        occurred.map(|reason| (i64::from(reason.code()), numbers.ends[place(*reason)])).unzip();
    (array(&codes), array(&ends))
}
