//! One session for each kind of request: requests that wait while it is busy share its next
//! statement.

use std::fmt::Write as _;
use std::iter::repeat_with;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio_postgres::{Client, Config, Statement};
use uuid::Uuid;

use super::{FloorError, connect};

const MEMBERS_MAX: usize = 200;

/// Recreated at every start. Definitions are separate from changing rows, and one index has random
/// keys.
const TABLES: &str = "
    DROP SCHEMA IF EXISTS floor CASCADE;
    CREATE SCHEMA floor;
    CREATE SEQUENCE floor.seq CACHE 100;
    CREATE TABLE floor.definitions (seq bigint PRIMARY KEY, definition jsonb NOT NULL);
    CREATE TABLE floor.tasks (
        task_id uuid PRIMARY KEY,
        seq bigint NOT NULL,
        state smallint NOT NULL DEFAULT 0,
        run_id smallint NOT NULL DEFAULT 0,
        retries_left smallint NOT NULL DEFAULT 5,
        created timestamptz NOT NULL DEFAULT now(),
        deadline timestamptz NOT NULL DEFAULT now() + interval '1 day',
        expires timestamptz NOT NULL DEFAULT now() + interval '1 year',
        taken_until timestamptz,
        worker text,
        started timestamptz,
        resolved timestamptz
    ) WITH (fillfactor = 70);
    CREATE TABLE floor.pending (
        queue_id text NOT NULL,
        priority smallint NOT NULL,
        seq bigint NOT NULL,
        task_id uuid NOT NULL,
        run_id smallint NOT NULL DEFAULT 0,
        PRIMARY KEY (queue_id, priority, seq)
    );
    CREATE TABLE floor.claimed (
        seq bigint PRIMARY KEY,
        task_id uuid NOT NULL,
        run_id smallint NOT NULL DEFAULT 0,
        taken_until timestamptz NOT NULL
    );
    CREATE INDEX ON floor.claimed (taken_until);";

const CREATE: &str = "-- create
    WITH members AS MATERIALIZED (
        SELECT task_id, priority, definition, nextval('floor.seq') AS seq
        FROM unnest($1::uuid[], $2::smallint[], $3::text[]) AS m(task_id, priority, definition)
    ), defined AS (
        INSERT INTO floor.definitions SELECT seq, definition::jsonb FROM members
    ), created AS (
        INSERT INTO floor.tasks (task_id, seq) SELECT task_id, seq FROM members
    )
    INSERT INTO floor.pending (queue_id, priority, seq, task_id)
    SELECT 'floor/queue', priority, seq, task_id FROM members";

/// Uses `ctid`, which is sound only because no statement updates a row of `pending`.
const CLAIM: &str = "-- claim
    WITH first AS MATERIALIZED (
        SELECT ctid FROM floor.pending WHERE queue_id = 'floor/queue'
        ORDER BY priority, seq LIMIT $1::bigint FOR UPDATE SKIP LOCKED
    ), taken AS (
        DELETE FROM floor.pending WHERE ctid = ANY (ARRAY(SELECT ctid FROM first)) RETURNING seq, task_id, run_id
    ), noted AS (
        INSERT INTO floor.claimed SELECT seq, task_id, run_id, now() + interval '20 min' FROM taken
    ), claimed AS (
        UPDATE floor.tasks t
        SET state = 1, taken_until = now() + interval '20 min', worker = 'group/worker-1', started = now()
        FROM taken WHERE t.task_id = taken.task_id
        RETURNING t.task_id, t.seq
    )
    SELECT c.task_id, d.definition::text FROM claimed c JOIN floor.definitions d USING (seq)";

const REPORT: &str = "-- report
    WITH resolved AS (
        UPDATE floor.tasks SET state = 2, resolved = now(), taken_until = NULL
        WHERE task_id = ANY ($1::uuid[]) AND state = 1
        RETURNING task_id, seq
    ), ended AS (
        DELETE FROM floor.claimed WHERE seq = ANY (ARRAY(SELECT seq FROM resolved))
    )
    SELECT task_id FROM resolved";

/// A kind of request, and its batched statement.
pub(super) trait Kind {
    type Request: Send + 'static;
    type Answer: Send + 'static;
    const STATEMENT: &'static str;

    /// Returns one answer for each request, in their order.
    fn run(
        session: &Session,
        asked: Vec<Self::Request>,
    ) -> impl Future<Output = Result<Vec<Self::Answer>, tokio_postgres::Error>> + Send;
}

pub(super) struct Session {
    client: Client,
    statement: Statement,
}

pub(super) struct Create;

pub(super) struct Creation {
    pub(super) task: Uuid,
    pub(super) priority: i16,
    pub(super) definition: String,
}

impl Kind for Create {
    type Request = Creation;
    type Answer = ();
    const STATEMENT: &'static str = CREATE;

    async fn run(session: &Session, asked: Vec<Creation>) -> Result<Vec<()>, tokio_postgres::Error> {
        let tasks: Vec<Uuid> = asked.iter().map(|creation| creation.task).collect();
        let priorities: Vec<i16> = asked.iter().map(|creation| creation.priority).collect();
        let definitions: Vec<&str> = asked.iter().map(|creation| creation.definition.as_str()).collect();
        session.client.execute(&session.statement, &[&tasks, &priorities, &definitions]).await?;
        Ok(vec![(); asked.len()])
    }
}

pub(super) struct Claim;

pub(super) struct Claimed {
    pub(super) task: Uuid,
    pub(super) definition: String,
}

impl Kind for Claim {
    type Request = ();
    type Answer = Option<Claimed>;
    const STATEMENT: &'static str = CLAIM;

    async fn run(session: &Session, asked: Vec<()>) -> Result<Vec<Option<Claimed>>, tokio_postgres::Error> {
        let limit = i64::try_from(asked.len()).unwrap_or(i64::MAX);
        let rows = session.client.query(&session.statement, &[&limit]).await?;
        let claimed = rows.iter().map(|row| Some(Claimed { task: row.get(0), definition: row.get(1) }));
        Ok(claimed.chain(repeat_with(|| None)).take(asked.len()).collect())
    }
}

pub(super) struct Report;

impl Kind for Report {
    type Request = Uuid;
    type Answer = ();
    const STATEMENT: &'static str = REPORT;

    async fn run(session: &Session, asked: Vec<Uuid>) -> Result<Vec<()>, tokio_postgres::Error> {
        session.client.query(&session.statement, &[&asked]).await?;
        Ok(vec![(); asked.len()])
    }
}

/// A request that waits for its batch, and the channel for its answer.
type Member<K> = (<K as Kind>::Request, oneshot::Sender<<K as Kind>::Answer>);

pub(super) struct Batcher<K: Kind> {
    members: UnboundedSender<Member<K>>,
    sizes: Arc<Sizes>,
}

#[derive(Default)]
struct Sizes {
    statements: AtomicU64,
    members: AtomicU64,
}

impl<K: Kind + 'static> Batcher<K> {
    async fn start(database: &Config) -> Result<Self, FloorError> {
        let client = connect(database).await?;
        let statement = client.prepare(K::STATEMENT).await?;
        let (members, waiting) = unbounded_channel();
        let sizes = Arc::<Sizes>::default();
        tokio::spawn(run_batches::<K>(Session { client, statement }, waiting, Arc::clone(&sizes)));
        Ok(Self { members, sizes })
    }

    pub(super) async fn submit(&self, asked: K::Request) -> Option<K::Answer> {
        let (answer, answered) = oneshot::channel();
        self.members.send((asked, answer)).ok()?;
        answered.await.ok()
    }

    /// Writes the sizes under the name of Tenure's metric.
    fn write_metrics(&self, operation: &str, text: &mut String) {
        let Sizes { members, statements } = &*self.sizes;
        for (figure, value) in [("sum", members), ("count", statements)] {
            let value = value.load(Ordering::Relaxed);
            writeln!(text, "tenure_batch_members_{figure}{{operation=\"{operation}\"}} {value}")
                .expect("a String takes whatever is written");
        }
    }
}

/// Batches all requests that waited for the last statement. Ends with the first error: a broken
/// baseline gives useless figures.
async fn run_batches<K: Kind>(session: Session, mut waiting: UnboundedReceiver<Member<K>>, sizes: Arc<Sizes>) {
    let mut members = Vec::new();
    while waiting.recv_many(&mut members, MEMBERS_MAX).await > 0 {
        sizes.statements.fetch_add(1, Ordering::Relaxed);
        sizes.members.fetch_add(members.len() as u64, Ordering::Relaxed);
        let (asked, answers): (Vec<_>, Vec<_>) = members.drain(..).unzip();
        match K::run(&session, asked).await {
            // A caller that hung up does not receive its answer.
            Ok(results) => answers.into_iter().zip(results).for_each(|(answer, result)| drop(answer.send(result))),
            Err(error) => return eprintln!("tenure-bench-floor: {error}: {:?}", std::error::Error::source(&error)),
        }
    }
}

pub(super) struct Batches {
    pub(super) create: Batcher<Create>,
    pub(super) claim: Batcher<Claim>,
    pub(super) report: Batcher<Report>,
}

impl Batches {
    pub(super) async fn start(database: &Config) -> Result<Self, FloorError> {
        connect(database).await?.batch_execute(TABLES).await?;
        Ok(Self {
            create: Batcher::start(database).await?,
            claim: Batcher::start(database).await?,
            report: Batcher::start(database).await?,
        })
    }

    pub(super) fn metrics(&self) -> String {
        let mut text = String::new();
        self.create.write_metrics("create", &mut text);
        self.claim.write_metrics("claim", &mut text);
        self.report.write_metrics("report", &mut text);
        text
    }
}
