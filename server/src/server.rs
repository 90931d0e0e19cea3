//! One server from start to end: database, schema, keys, root client, requests and passes, drain.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::auth::Authenticator;
use crate::config::{ClockMode, Database, Settings};
use crate::descriptors;
use crate::disk;
use crate::http::api::authority::ClientAuthority;
use crate::http::api::recorded::Metrics;
use crate::http::api::state::ApiState;
use crate::http::blobs::downloads::Downloads;
use crate::http::blobs::state::BlobsState;
use crate::http::budget::Budget;
use crate::http::connection::Front;
use crate::http::docs::state::DocsState;
use crate::http::files::Files;
use crate::http::heavy::Heavy;
use crate::http::intake::Intake;
use crate::http::page::state::{Pages, SiteState};
use crate::http::poll::state::PollState;
use crate::http::poll::urls::PollUrls;
use crate::http::read_slots::ReadSlots;
use crate::http::request_metrics::RequestMetrics;
use crate::http::{self, Areas, connection};
use crate::key_check::{self, KeyError};
use crate::log_limiter;
use crate::service_manager;
use crate::telemetry;
use tenure_embedded::{self as embedded, Embedded, RootCredentials};
use tenure_engine::authority::Authority;
use tenure_engine::background::problems::{FreeDisk, Machine};
use tenure_engine::background::registry::Passes;
use tenure_engine::background::{clocks, driver};
use tenure_engine::blobs::Blobs;
use tenure_engine::blobs::settings::ArtifactsPlace;
use tenure_engine::engine::{self, Engine, EngineSettings, Lifetime};
use tenure_engine::events::deliveries::{self, Deliveries};
use tenure_engine::ops::workers;
use tenure_engine::traces::{self, Exporter};
use tenure_store::clients::{self, NewClient};
use tenure_store::connector::Connector;
use tenure_store::secrets::{Purpose, SecretKeys, SubscriptionSecrets, WorkerDigests, new_access_token};
use tenure_store::servers::{self, Member};
use tenure_store::session::Pools;
use tenure_store::settings as facts;
use tenure_store::{clock, cluster, schema};

/// For open requests.
const DRAIN_REQUESTS: Duration = Duration::from_secs(6);
/// For batches, requeues and passes, after that.
const DRAIN_TASKS: Duration = Duration::from_secs(2);
/// For the last numbers of queues.
const STATISTICS_MAX: Duration = Duration::from_secs(1);
/// For the last spans.
const TRACES_MAX: Duration = Duration::from_secs(1);
/// A connection to a silent database never closes.
pub(crate) const CLOSE_MAX: Duration = Duration::from_secs(2);
/// From the start of the drain to the end of the process, including PostgreSQL, plus a margin.
const STOP_MAX: Duration = Duration::from_secs(25);
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// The client that is created if none exists.
const ROOT: &str = "root";

mod error;

pub use error::StartError;

struct Ready {
    connector: Connector,
    pools: Pools,
    embedded: Option<Arc<Embedded>>,
}

/// Requests to end a server.
#[derive(Clone)]
pub struct Shutdown {
    /// Fails `/readyz`, or ends a start.
    pub requested: CancellationToken,
    /// Ends a serving server: no new connections, and open requests end. Follows `requested` after
    /// `--drain-delay`.
    pub drain: CancellationToken,
}

/// `ready` receives the root URL once the server can serve.
pub async fn run(
    listener: TcpListener,
    settings: Settings,
    shutdown: Shutdown,
    ready: impl FnOnce(&str),
) -> Result<(), StartError> {
    let bound = bound(&listener)?;
    let root_url = settings.root_url(bound);
    // Recovery and migrations may take long. Dropping a database that is being opened asks an
    // embedded PostgreSQL to stop.
    let Some(database) = shutdown.requested.run_until_cancelled(open(&settings.database)).await else {
        tracing::info!("stopped before the database was open");
        return Ok(());
    };
    let database = database?;
    let prepared = shutdown.requested.run_until_cancelled(prepare(&database)).await;
    let result = match prepared {
        Some(Ok(())) => serve(listener, &settings, &root_url, &database, &shutdown, ready).await,
        Some(Err(error)) => Err(error),
        None => {
            // Without requests there is no drain, so the next signal is an immediate end.
            shutdown.drain.cancel();
            tracing::info!("stopped before the schema was up to date");
            Ok(())
        }
    };
    let result = result.map_err(|error| error.of(database.connector.options()));
    if tokio::time::timeout(CLOSE_MAX, database.pools.close()).await.is_err() {
        tracing::warn!("some database connections did not close in time");
    }
    if let Some(embedded) = database.embedded {
        embedded.stop().await;
    }
    result
}

fn bound(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(StartError::Listener)
}

async fn open(database: &Database) -> Result<Ready, StartError> {
    let (connector, embedded) = match database {
        Database::External(hosts) => {
            let connector = Connector::new(hosts.clone());
            connector.reach().await.map_err(|error| StartError::from(error).of(connector.options()))?;
            (connector, None)
        }
        Database::Embedded(settings) => {
            let embedded = Arc::new(Embedded::start(settings).await?);
            let supervised = Arc::clone(&embedded);
            tokio::spawn(async move { supervised.supervise().await });
            (Connector::new(embedded.connect_options()), Some(embedded))
        }
    };
    Ok(Ready { pools: connector.pools(), connector, embedded })
}

async fn prepare(database: &Ready) -> Result<(), StartError> {
    if database.embedded.is_none() {
        let major = cluster::get_major_version(&database.pools.requests).await?;
        if major < cluster::OLDEST_MAJOR {
            return Err(StartError::TooOld(major));
        }
        for warning in cluster::find_warnings(&database.pools.requests).await? {
            tracing::warn!(setting = warning.setting, value = warning.value, "{}", warning.advice);
        }
    }
    schema::migrate(&database.pools.requests).await?;
    Ok(())
}

async fn serve(
    listener: TcpListener,
    settings: &Settings,
    root_url: &str,
    database: &Ready,
    shutdown: &Shutdown,
    ready: impl FnOnce(&str),
) -> Result<(), StartError> {
    let keys = fitting_keys(settings, database).await?;
    if database.embedded.is_some() {
        make_root(&database.pools.requests, &keys, &settings.data_dir, root_url).await?;
    }
    warn_of_moved_clock(settings, &database.pools.requests).await?;
    let mode = if database.embedded.is_some() { "embedded" } else { "external" };
    let place = &settings.artifacts.place;
    tracing::info!(database = mode, artifacts = %place, root_url, version = env!("CARGO_PKG_VERSION"), "starting");
    if let (None, ArtifactsPlace::Folder(_)) = (&database.embedded, place) {
        tracing::info!(artifacts = %place, "artifacts are files: all servers of this database must share their folder");
    }
    let member = join(settings, &database.pools.requests, bound(&listener)?).await?;
    let (tasks, connections, stop) = (TaskTracker::new(), TaskTracker::new(), CancellationToken::new());
    let areas = assemble(settings, database, keys, (root_url, member), &tasks, &stop, shutdown);
    let (passes, heavy) = (Arc::clone(&areas.api.passes), areas.api.intake.heavy.clone());
    let deliveries = areas.api.deliveries.clone();
    let engine = Arc::clone(&passes.engine);
    // After the metrics, which count spans.
    let traces = start_traces(settings, &engine);
    let metrics = RequestMetrics::new(areas.docs.routes.iter().map(|route| route.endpoint.name));
    let limits = settings.limits;
    let front = Front {
        router: http::router(areas),
        tasks: connections.clone(),
        drain: shutdown.drain.clone(),
        heavy,
        answers: Budget::new("answers", limits.answer_memory),
        write_timeout: limits.write_timeout,
        connections_max: descriptors::connections_max(limits.connections_max),
        metrics,
    };
    // Before the first request, whose credentials need the clock.
    clocks::pass(&engine).await?;
    if let Err(error) = passes.replication.run(&engine).await {
        tracing::warn!(error = %error, "the replication settings could not be read; retrying");
    }
    engine.facts.refresh().await?;
    workers::note_held(&engine.pool).await?;
    let (seen, statistics) = (engine.workers.clone(), engine.notifiers.statistics().clone());
    facts::put(&database.pools.requests, facts::ROOT_URL, root_url).await?;
    drop((engine, passes));
    if shutdown.requested.is_cancelled() {
        // Nobody uses this server yet.
        shutdown.drain.cancel();
    }
    ready(root_url);
    service_manager::notify_ready();
    tasks.spawn(service_manager::notify_watchdog(stop.clone()));
    tokio::join!(connection::serve(listener, front), announce_stop(shutdown, settings.drain_delay));
    tracing::info!("draining");
    start_checkpoint(database, &tasks, &stop);
    end_requests(&connections, deliveries).await;
    // The last connection has dropped the state of every area. When the passes have ended too,
    // nothing holds the engine: its batchers finish their work and end.
    stop.cancel();
    tasks.close();
    let (ended, written) = tokio::join!(
        tokio::time::timeout(DRAIN_TASKS, tasks.wait()),
        tokio::time::timeout(DRAIN_TASKS, workers::write_down(&database.pools.requests, &seen)),
    );
    if ended.is_err() {
        tracing::warn!(tasks = tasks.len(), "some background work did not end in time");
    }
    if !matches!(written, Ok(Ok(_))) {
        tracing::warn!("the times when workers were last seen could not be stored");
    }
    // After the last batch.
    let written = tokio::time::timeout(STATISTICS_MAX, statistics.write_down(&database.pools.requests)).await;
    if !matches!(written, Ok(Ok(_))) {
        tracing::warn!("the last numbers of queues could not be stored");
    }
    end_traces(traces).await;
    tracing::info!("stopped");
    Ok(())
}

fn start_traces(settings: &Settings, engine: &Engine) -> Option<Exporter> {
    traces::start(settings.traces.as_ref()?, &engine.schedulers.member().name)
}

async fn end_traces(traces: Option<Exporter>) {
    if let Some(exporter) = traces
        && tokio::time::timeout(TRACES_MAX, exporter.end()).await.is_err()
    {
        tracing::warn!("the last spans could not be sent");
    }
}

/// Waits for open requests, and for the answers to messages of subscriptions.
async fn end_requests(connections: &TaskTracker, deliveries: Deliveries) {
    connections.close();
    let (answered, delivered) = tokio::join!(
        tokio::time::timeout(DRAIN_REQUESTS, connections.wait()),
        tokio::time::timeout(DRAIN_REQUESTS, deliveries.ended()),
    );
    // Held until now, it would keep the engine.
    drop(deliveries);
    if answered.is_err() {
        tracing::warn!(connections = connections.len(), "some requests did not end in time");
    }
    if delivered.is_err() {
        tracing::warn!("some messages of subscriptions were not answered in time; another server sends them again");
    }
}

async fn announce_stop(shutdown: &Shutdown, drain_delay: Duration) {
    tokio::select! {
        () = shutdown.requested.cancelled() => {}
        () = shutdown.drain.cancelled() => {}
    }
    let delay = if shutdown.drain.is_cancelled() { Duration::ZERO } else { drain_delay };
    service_manager::notify_stopping(delay + STOP_MAX);
    if !delay.is_zero() {
        tracing::info!(delay.seconds = delay.as_secs_f64(), "/readyz is 503 from now on; the drain follows");
    }
}

/// Stopping an embedded PostgreSQL has a time limit, so its checkpoint starts during the drain. A
/// finished drain does not wait for it.
fn start_checkpoint(database: &Ready, tasks: &TaskTracker, stop: &CancellationToken) {
    if let Some(embedded) = &database.embedded {
        let (embedded, until) = (Arc::clone(embedded), stop.clone());
        tasks.spawn(async move { until.run_until_cancelled(embedded.checkpoint()).await });
    }
}

async fn join(settings: &Settings, pool: &PgPool, bound: SocketAddr) -> Result<Member, StartError> {
    let scheduler = &settings.scheduler;
    let member = Member { id: Uuid::new_v4(), name: scheduler.name(bound), weight: scheduler.weight };
    servers::join(&mut *pool.acquire().await?, &member).await?;
    Ok(member)
}

/// Once tests have moved a database's clock, it stays ahead.
async fn warn_of_moved_clock(settings: &Settings, pool: &PgPool) -> Result<(), StartError> {
    let seconds = clock::get_offset(&mut *pool.acquire().await?).await?;
    if seconds != 0.0 && settings.clock == ClockMode::Database {
        tracing::warn!(seconds, "the clock of this database was moved by --clock manual; all times are ahead by that");
    }
    Ok(())
}

async fn fitting_keys(settings: &Settings, database: &Ready) -> Result<SecretKeys, StartError> {
    let file = || embedded::secret_key_path(&settings.data_dir).display().to_string();
    let (keys, source) = match (&settings.secret_keys, &database.embedded) {
        (Some(given), _) => (given.keys.clone(), given.source_name.clone()),
        (None, Some(embedded)) => match embedded.find_secret_keys()? {
            Some(keys) => (keys, file()),
            // A new key would lock out every client.
            None if key_check::needs_key(&database.pools.requests).await? => {
                return Err(KeyError::Lost { source_name: file() }.into());
            }
            None => (embedded.secret_keys()?, file()),
        },
        (None, None) => unreachable!("settings without keys are refused with an external database"),
    };
    key_check::verify(&database.pools.requests, &keys, &source).await?;
    Ok(keys)
}

fn assemble(
    settings: &Settings,
    database: &Ready,
    keys: SecretKeys,
    (root_url, member): (&str, Member),
    tasks: &TaskTracker,
    stop: &CancellationToken,
    shutdown: &Shutdown,
) -> Areas {
    // Before the first metric is recorded.
    let metrics = telemetry::start_metrics();
    tasks.spawn(keep_up(metrics.clone(), stop.clone()));
    tasks.spawn(report_repeats(stop.clone()));
    let lifetime = Lifetime { tasks: tasks.clone(), stop: stop.clone(), drain: shutdown.drain.clone() };
    let blobs = open_blobs(settings, &keys, root_url, tasks, stop);
    let engine = start_engine(settings, database, blobs, member, &lifetime);
    let (poll_keys, worker_digests) = (keys.signing_keys(Purpose::PollUrls), WorkerDigests::new(&keys));
    let subscription_secrets = SubscriptionSecrets::new(&keys);
    let poll_urls = Arc::new(PollUrls::new(poll_keys, root_url, settings.message_visibility));
    let authenticator = Authenticator::new(database.pools.lookups.clone(), engine.facts.clone(), keys);
    let caches = authenticator.caches();
    engine.remembered.add("clients", move || caches.drop_all());
    let heavy = Heavy::new();
    let files = Files::new(tasks, &heavy);
    let intake = Arc::new(Intake {
        engine: engine.clone(),
        authenticator,
        bodies: Budget::new("bodies", settings.limits.request_memory),
        read_slots: ReadSlots::new(),
        heavy,
        manual_clock: settings.clock == ClockMode::Manual,
    });
    let authority: Arc<dyn Authority> = Arc::new(ClientAuthority::new(intake.clone()));
    let deliveries = start_deliveries(settings, &engine, &authority, subscription_secrets, &lifetime);
    let passes = Passes::new(&engine, &database.connector, &authority, &deliveries);
    passes.problems.watch(Machine { free_disk: free_disk(settings, database) });
    driver::run_passes(&passes, &database.connector, &lifetime);
    Areas {
        poll: Arc::new(PollState { intake: intake.clone(), engine: engine.clone(), poll_urls: poll_urls.clone() }),
        blobs: Arc::new(BlobsState {
            intake: intake.clone(),
            engine: engine.clone(),
            downloads: Downloads::default(),
            tasks: tasks.clone(),
        }),
        page: Arc::new(SiteState {
            intake: intake.clone(),
            engine: engine.clone(),
            pages: Pages::new(root_url),
            free_disk: free_disk(settings, database),
            tasks: tasks.clone(),
            drain: shutdown.drain.clone(),
        }),
        docs: Arc::new(DocsState {
            intake: intake.clone(),
            files: files.clone(),
            root_url: root_url.to_owned(),
            routes: http::routes(),
            references: OnceLock::new(),
        }),
        api: Arc::new(ApiState {
            intake,
            engine,
            passes,
            authority,
            deliveries,
            poll_urls,
            tasks: tasks.clone(),
            files,
            worker_digests,
            root_url: root_url.to_owned(),
            stopping: shutdown.requested.clone(),
            drain: shutdown.drain.clone(),
            claim_work_wait: settings.claim_work_wait,
            started: Instant::now(),
            metrics: served_metrics(settings, database, metrics),
        }),
    }
}

fn served_metrics(settings: &Settings, database: &Ready, recorded: PrometheusHandle) -> Metrics {
    let data_dir = database.embedded.as_ref().map(|_| settings.data_dir.clone());
    Metrics::new(recorded, settings.metrics_token.clone(), database.pools.clone(), data_dir)
}

/// Only an embedded database is certain to be on this machine.
fn free_disk(settings: &Settings, database: &Ready) -> Option<FreeDisk> {
    let folder = database.embedded.as_ref().map(|_| settings.data_dir.clone());
    folder.map(|folder| Box::new(move || disk::free_part(&folder)) as FreeDisk)
}

fn start_engine(
    settings: &Settings,
    database: &Ready,
    blobs: Blobs,
    member: Member,
    lifetime: &Lifetime,
) -> Arc<Engine> {
    let times = EngineSettings {
        claim_timeout: settings.claim_timeout,
        poll_reservation: settings.poll_reservation,
        message_visibility: settings.message_visibility,
        event_retention: settings.event_retention,
        audit_retention: settings.audit_retention,
        hot_sessions: settings.hot_sessions,
        live_log_max: settings.limits.live_log_max,
        statistics_queues: settings.limits.statistics_queues,
        metrics_queues: settings.limits.metrics_queues,
        member,
    };
    let (connector, pools) = (database.connector.clone(), database.pools.clone());
    let parts = engine::Database { claim_connector: connector.clone(), connector, pools };
    Engine::start(parts, times, blobs, lifetime)
}

fn start_deliveries(
    settings: &Settings,
    engine: &Engine,
    authority: &Arc<dyn Authority>,
    secrets: SubscriptionSecrets,
    lifetime: &Lifetime,
) -> Deliveries {
    Deliveries::new(deliveries::Parts {
        pool: engine.background_pool.clone(),
        sequencer: engine.sequencer.clone(),
        tail: engine.tail.clone(),
        server: engine.schedulers.member().id,
        authority: Arc::clone(authority),
        secrets,
        settings: settings.deliveries.clone(),
        tasks: lifetime.tasks.clone(),
        drain: lifetime.drain.clone(),
    })
}

/// The check of the store continues in the background.
fn open_blobs(
    settings: &Settings,
    keys: &SecretKeys,
    root_url: &str,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Blobs {
    let blobs = Blobs::new(keys.signing_keys(Purpose::BlobUrls), root_url, &settings.artifacts);
    let (probed, until) = (blobs.clone(), stop.clone());
    tasks.spawn(async move { until.run_until_cancelled(probed.probe()).await });
    blobs
}

async fn report_repeats(stop: CancellationToken) {
    while tokio::time::timeout(log_limiter::EVERY, stop.cancelled()).await.is_err() {
        telemetry::log_limiter().report();
    }
}

async fn keep_up(metrics: PrometheusHandle, stop: CancellationToken) {
    while tokio::time::timeout(UPKEEP_EVERY, stop.cancelled()).await.is_err() {
        metrics.run_upkeep();
    }
}

/// Creates `root` if no client exists. If it was deleted while others remain, it stays deleted,
/// since its token may have leaked. The file is written first, so that a server killed in between
/// finds the token again.
async fn make_root(pool: &PgPool, keys: &SecretKeys, data_dir: &Path, root_url: &str) -> Result<(), StartError> {
    let exists = clients::find(pool, ROOT).await?.is_some();
    if !exists && !clients::list_tokens(pool, None, 1).await?.is_empty() {
        return Ok(());
    }
    let stored = embedded::find_root_token(data_dir)?;
    if exists && stored.is_none() {
        tracing::warn!("root-credentials.json is missing; make a new token with `tenure client reset-token root`");
        return Ok(());
    }
    let token = stored.unwrap_or_else(new_access_token);
    let credentials = RootCredentials { client_id: ROOT, access_token: token.expose(), root_url };
    embedded::write_root_credentials(data_dir, &credentials)?;
    if !exists {
        let root = NewClient {
            client_id: ROOT.to_owned(),
            scopes: vec!["*".to_owned()],
            description: "Created at the first start; has all scopes.".to_owned(),
            expires: None,
            delete_on_expiration: false,
        };
        clients::create(pool, keys, &root, &token).await?;
    }
    Ok(())
}
