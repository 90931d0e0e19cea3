//! Shared parts of the commands that call a running server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use tenure_api::dates::Timestamp;
use tenure_client::error::chain;
use tenure_client::{AccessToken, Client, Credentials, Error, RetryPolicy};

use super::print::{complain, plain, pretty, print};
use super::signals;
use super::when::When;

/// Written by a server with embedded PostgreSQL for its first client.
const ROOT_CREDENTIALS: &str = "root-credentials.json";
/// Section of the help with the options that every command has.
const CONNECTION: &str = "Connection";
/// Section of the help with the options of [`CallArgs`].
const CALLING: &str = "Calling a server";
const USAGE: u8 = 2;

/// Retries of a long-running command, and the longest pause between two. Jitter may halve a pause.
const RETRIES_PATIENT: u32 = 41;
const PAUSE_PATIENT: Duration = Duration::from_secs(5);

#[derive(Args, Clone)]
pub struct ServerArgs {
    /// The URL of the server. Without it and the two options below, all three come from
    /// root-credentials.json in the data directory.
    #[arg(long, global = true, env = "TASKCLUSTER_ROOT_URL", value_name = "URL", help_heading = CONNECTION)]
    pub root_url: Option<String>,
    /// The client to call it as.
    #[arg(
        long,
        global = true,
        env = "TASKCLUSTER_CLIENT_ID",
        value_name = "ID",
        allow_hyphen_values = true,
        help_heading = CONNECTION
    )]
    pub client_id: Option<String>,
    /// Its secret. Better set in the environment: other users can see the arguments of a process.
    #[arg(
        long,
        global = true,
        env = "TASKCLUSTER_ACCESS_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        allow_hyphen_values = true,
        help_heading = CONNECTION
    )]
    pub access_token: Option<String>,
    /// The certificate that belongs to temporary credentials.
    #[arg(
        long,
        global = true,
        env = "TASKCLUSTER_CERTIFICATE",
        hide_env_values = true,
        value_name = "JSON",
        help_heading = CONNECTION
    )]
    pub certificate: Option<String>,
    /// PEM file with the certificate of the authority that signed the server's. It is trusted in
    /// addition to the system's authorities, or those in SSL_CERT_FILE.
    #[arg(long, global = true, value_name = "FILE", help_heading = CONNECTION)]
    pub ca: Option<PathBuf>,
    /// Directory that contains root-credentials.json.
    #[arg(
        long,
        global = true,
        env = "TENURE_DATA_DIR",
        default_value = "./tenure-data",
        value_name = "DIR",
        help_heading = CONNECTION
    )]
    pub data_dir: PathBuf,
    /// Print the server's answer as JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

impl std::fmt::Debug for ServerArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerArgs")
            .field("root_url", &self.root_url)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// Options of commands that use the database, to call a server instead.
#[derive(Args, Clone)]
pub struct CallArgs {
    /// Call a server, as `tenure task` does, instead of opening the database.
    #[arg(long, global = true, help_heading = CALLING)]
    pub http: bool,
    /// The URL of the server. Without it, the client and its secret, all three come from
    /// root-credentials.json in the data directory.
    #[arg(long, global = true, env = "TASKCLUSTER_ROOT_URL", value_name = "URL", help_heading = CALLING)]
    pub server_url: Option<String>,
    /// The client to call it as.
    #[arg(
        long = "client-id",
        global = true,
        env = "TASKCLUSTER_CLIENT_ID",
        value_name = "ID",
        allow_hyphen_values = true,
        help_heading = CALLING
    )]
    pub caller: Option<String>,
    /// Its secret. Better set in the environment: other users can see the arguments of a process.
    #[arg(
        long,
        global = true,
        env = "TASKCLUSTER_ACCESS_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        allow_hyphen_values = true,
        help_heading = CALLING
    )]
    pub access_token: Option<String>,
    /// The certificate that belongs to temporary credentials.
    #[arg(
        long,
        global = true,
        env = "TASKCLUSTER_CERTIFICATE",
        hide_env_values = true,
        value_name = "JSON",
        help_heading = CALLING
    )]
    pub certificate: Option<String>,
    /// PEM file with the certificate of the authority that signed the server's.
    #[arg(long, global = true, value_name = "FILE", help_heading = CALLING)]
    pub ca: Option<PathBuf>,
}

impl CallArgs {
    #[must_use]
    pub fn server(self, data_dir: PathBuf, json: bool) -> ServerArgs {
        let Self { http: _, server_url, caller, access_token, certificate, ca } = self;
        ServerArgs { root_url: server_url, client_id: caller, access_token, certificate, ca, data_dir, json }
    }
}

impl std::fmt::Debug for CallArgs {
    /// Leaves out the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallArgs")
            .field("http", &self.http)
            .field("server_url", &self.server_url)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Refused(String),
    /// Exit code after a signal.
    #[error("{0}")]
    Interrupted(String, ExitCode),
}

impl CommandError {
    pub(super) fn no_signals(error: &std::io::Error) -> Self {
        Self::Refused(format!("cannot receive signals: {error}"))
    }

    /// Converts an error of the client library into one line for people.
    #[must_use]
    pub fn new(error: &Error, root_url: &str) -> Self {
        if let Some(problem) = error.certificate_problem() {
            return Self::Refused(format!(
                "the certificate of {root_url} is not trusted ({problem}): name a file with the certificate of its \
                 authority with --ca"
            ));
        }
        Self::Refused(match error {
            Error::Network(cause) => {
                let mut innermost: &dyn std::error::Error = cause;
                while let Some(inner) = innermost.source() {
                    innermost = inner;
                }
                format!("{root_url} does not answer ({innermost}): start the server, or name another with --root-url")
            }
            Error::Refused { status: 401, message, .. } => {
                format!("{message}: check --client-id and --access-token (TASKCLUSTER_ACCESS_TOKEN)")
            }
            Error::Refused { status, code, message, .. } if message.is_empty() => {
                format!("{root_url} answered {status} {code}: check that --root-url is that of a Tenure server")
            }
            Error::Refused { status, code, message, .. } => format!("{message} ({status} {code})"),
            Error::DuplicateTask { holder, message, .. } => format!("{message} (409 DuplicateTask, task {holder})"),
            Error::SessionExists(message) | Error::SessionEnded(message) => message.clone(),
            Error::BadAnswer(_) | Error::BadMessages(_) | Error::SignedUrl(_) => not_tenure(root_url),
            // Errors of log bytes, files and jobs (no command here runs jobs). The cause names a
            // full disk.
            Error::Store { .. }
            | Error::Stalled(_)
            | Error::Damaged(_)
            | Error::File { .. }
            | Error::NotJson(_)
            | Error::RunLost(_) => chain(error),
            Error::RootUrl(problem) => return Self::Usage(format!("--root-url (TASKCLUSTER_ROOT_URL) {problem}")),
            Error::NotInEnvironment(_) => return Self::Usage(error.to_string()),
        })
    }
}

fn not_tenure(root_url: &str) -> String {
    format!("the answer of {root_url} is not one of Tenure: check --root-url (TASKCLUSTER_ROOT_URL)")
}

pub struct Server {
    pub client: Client,
    pub json: bool,
}

impl Server {
    /// Sends no request.
    pub fn new(args: ServerArgs) -> Result<Self, CommandError> {
        let (json, ca) = (args.json, args.ca.clone());
        let (root_url, credentials) = account(args)?;
        let mut builder = Client::builder().root_url(&root_url);
        if let Some(file) = ca {
            builder =
                builder.ca_file(&file).map_err(|error| CommandError::Usage(format!("--ca: {}", chain(&error))))?;
        }
        if let Some(credentials) = credentials {
            builder = builder.credentials(credentials);
        }
        let client = builder.build().map_err(|error| CommandError::new(&error, &root_url))?;
        Ok(Self { client, json })
    }

    pub fn error(&self, error: &Error) -> CommandError {
        CommandError::new(error, self.client.root_url())
    }

    /// Error for an answer in an unknown format.
    pub fn strange(&self, _: &serde_json::Error) -> CommandError {
        CommandError::Refused(not_tenure(self.client.root_url()))
    }

    /// For long-running commands: once the server has answered, it may be away for a minute and a
    /// half.
    #[must_use]
    pub fn patient(&self) -> Self {
        Self { client: self.client.with_retry_policy(patient_retries()), json: self.json }
    }

    /// Resolves a time. Relative times use the server's clock, since this machine's may be wrong.
    pub async fn time(&self, when: Option<When>) -> Result<Option<Timestamp>, CommandError> {
        let now = match when {
            Some(When::In(_)) => self.client.server_time().await.map_err(|error| self.error(&error))?,
            Some(When::At(_)) | None => self.client.now(),
        };
        Ok(when.map(|when| when.time(now)))
    }

    pub fn print(&self, answer: &Value, text: impl FnOnce(&Value) -> String) -> Result<(), CommandError> {
        let text = if self.json { pretty(answer) } else { text(answer) };
        print(&format!("{}\n", text.trim_end()))
            .map_err(|error| CommandError::Refused(format!("the result cannot be written: {error}")))
    }
}

fn patient_retries() -> RetryPolicy {
    // A proxy may answer for an unavailable server.
    RetryPolicy::default().retries(RETRIES_PATIENT).longest_pause(PAUSE_PATIENT).unclear_too()
}

/// True if a refused stream may be opened later. A proxy may answer for an unavailable server.
#[must_use]
pub fn may_pass(error: &Error) -> bool {
    error.is_transient() || error.status().is_some() && error.is_unclear()
}

/// Returns the given server and credentials, or else those in the data directory.
fn account(args: ServerArgs) -> Result<(String, Option<Credentials>), CommandError> {
    // In scripts, an empty variable means "none".
    let given = |value: Option<String>| value.filter(|text| !text.is_empty());
    let missing = |what: &str| Err(CommandError::Usage(format!("{what} is missing; it must be given with the others")));
    match (given(args.root_url), given(args.client_id), given(args.access_token)) {
        (Some(root_url), Some(client_id), Some(token)) => {
            let access_token = AccessToken::new(token);
            Ok((root_url, Some(Credentials { client_id, access_token, certificate: given(args.certificate) })))
        }
        // Anonymous callers may read, unless the server's roles forbid it.
        (Some(root_url), None, None) => Ok((root_url, None)),
        (None, None, None) => root_account(&args.data_dir),
        (None, ..) => missing("--root-url (TASKCLUSTER_ROOT_URL)"),
        (_, None, _) => missing("--client-id (TASKCLUSTER_CLIENT_ID)"),
        (.., None) => missing("--access-token (TASKCLUSTER_ACCESS_TOKEN)"),
    }
}

fn root_account(data_dir: &std::path::Path) -> Result<(String, Option<Credentials>), CommandError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Account {
        root_url: String,
        #[serde(flatten)]
        credentials: Credentials,
    }
    let path = data_dir.join(ROOT_CREDENTIALS);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        CommandError::Usage(format!(
            "no server is named, and {} cannot be read ({error}): give --root-url, --client-id and --access-token, or \
             --data-dir of a server on this machine",
            path.display()
        ))
    })?;
    let account: Account = serde_json::from_str(&text)
        .map_err(|error| CommandError::Usage(format!("{} does not hold credentials: {error}", path.display())))?;
    Ok((account.root_url, Some(account.credentials)))
}

/// Runs a command that calls a server, until a signal ends the process.
pub async fn call(
    name: &str,
    server: ServerArgs,
    run: impl AsyncFnOnce(&Server) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    match signals::exit_at_once() {
        Ok(()) => call_to_its_end(name, server, run).await,
        Err(error) => end(name, Err(CommandError::no_signals(&error))),
    }
}

/// Like [`call`], for commands that handle signals themselves.
pub async fn call_to_its_end(
    name: &str,
    server: ServerArgs,
    run: impl AsyncFnOnce(&Server) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    end(
        name,
        match Server::new(server) {
            Ok(server) => run(&server).await,
            Err(error) => Err(error),
        },
    )
}

fn end(name: &str, result: Result<ExitCode, CommandError>) -> ExitCode {
    result.unwrap_or_else(|error| {
        let line = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        complain(&format!("tenure {name}: {line}"));
        match error {
            CommandError::Usage(_) => ExitCode::from(USAGE),
            CommandError::Refused(_) => ExitCode::FAILURE,
            CommandError::Interrupted(_, code) => code,
        }
    })
}

/// Returns a field as text; a dash if missing or null.
#[must_use]
pub fn field(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(Value::String(text)) => plain(text),
        None | Some(Value::Null) => "-".to_owned(),
        Some(other) => plain(&other.to_string()),
    }
}

#[must_use]
pub fn entries<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn args(root_url: Option<&str>, client_id: Option<&str>, token: Option<&str>, dir: &std::path::Path) -> ServerArgs {
        ServerArgs {
            root_url: root_url.map(str::to_owned),
            client_id: client_id.map(str::to_owned),
            access_token: token.map(str::to_owned),
            certificate: None,
            ca: None,
            data_dir: dir.to_owned(),
            json: false,
        }
    }

    #[test]
    fn named_server_precedes_data_directory() {
        let dir = tempfile::TempDir::new().unwrap();
        let text = r#"{"clientId": "root", "accessToken": "t", "rootUrl": "http://127.0.0.1:1"}"#;
        std::fs::write(dir.path().join(ROOT_CREDENTIALS), text).unwrap();
        let (root_url, credentials) = account(args(None, Some(""), None, dir.path())).unwrap();
        assert_eq!((root_url.as_str(), credentials.unwrap().client_id.as_str()), ("http://127.0.0.1:1", "root"));
        let (root_url, credentials) = account(args(Some("http://x"), Some("me"), Some("s"), dir.path())).unwrap();
        assert_eq!((root_url.as_str(), credentials.unwrap().client_id.as_str()), ("http://x", "me"));
        assert!(account(args(Some("http://x"), None, None, dir.path())).unwrap().1.is_none());
    }

    #[test]
    fn foreign_text_cannot_control_terminal() {
        let answer = json!({"text": "a\u{1b}[2J\n\u{9b}2J", "object": {"key": "\u{9b}2J\u{7f}é"}});
        assert_eq!(field(&answer, "/text"), "a\u{fffd}[2J\u{fffd}\u{fffd}2J");
        assert_eq!(field(&answer, "/object"), "{\"key\":\"\u{fffd}2J\u{fffd}é\"}");
        let printed = pretty(&answer);
        assert!(!printed.contains(|character: char| character.is_control() && character != '\n'), "{printed:?}");
        assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), answer);
    }

    #[tokio::test]
    async fn relative_time_uses_server_clock() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::builder().root_url(&format!("http://{}", listener.local_addr().unwrap())).build().unwrap();
        let server = Server { client, json: false };
        let here = server.client.now();
        assert_eq!(server.time(None).await.unwrap(), None);
        assert_eq!(server.time(Some(When::At(here))).await.unwrap(), Some(here));
        let there = here.time() + TimeDelta::minutes(20);
        let date = there.format("%a, %d %b %Y %H:%M:%S GMT");
        let answer = format!("HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-length: 2\r\n\r\n{{}}");
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {}
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let hour = TimeDelta::hours(1);
        let time = server.time(Some(When::In(hour))).await.unwrap().unwrap().time();
        assert!((time - hour - there).num_seconds().abs() < 60, "{time} {there}");
        serving.await.unwrap();
    }

    #[test]
    fn patient_retries_span_ninety_seconds() {
        let least: Duration = (1..=RETRIES_PATIENT).map(|failures| patient_retries().backoff(failures, 0.0)).sum();
        assert!(least >= Duration::from_secs(90), "{least:?}");
        let page = Error::Refused { status: 404, code: String::new(), message: String::new(), retry_after: None };
        assert!(patient_retries().pause_after(1, &page, 0.0).is_some(), "a proxy answers for it");
    }

    #[test]
    fn unwritable_file_is_named_with_reason() {
        let error = Error::of_file("/tmp cannot be written")(std::io::Error::other("the disk is full"));
        let said = CommandError::new(&error, "http://x").to_string();
        assert_eq!(said, "/tmp cannot be written: the disk is full");
    }

    #[test]
    fn duplicate_names_existing_task() {
        let holder = "9HrBC1jMQ3KlZw4CssPUeQ".parse().unwrap();
        let error = Error::DuplicateTask { holder, entry: None, message: "nightly is taken".to_owned() };
        let said = CommandError::new(&error, "http://x").to_string();
        assert_eq!(said, "nightly is taken (409 DuplicateTask, task 9HrBC1jMQ3KlZw4CssPUeQ)");
    }

    #[test]
    fn proxy_errors_are_transient() {
        let refused = |status, code: &str| {
            let (code, message) = (code.to_owned(), String::new());
            Error::Refused { status, code, message, retry_after: None }
        };
        assert!(may_pass(&refused(503, "ServiceUnavailable")) && may_pass(&refused(404, "")));
        assert!(!may_pass(&refused(403, "InsufficientScopes")) && !may_pass(&refused(400, "InputError")));
    }

    #[test]
    fn partly_named_server_is_refused() {
        let dir = tempfile::TempDir::new().unwrap();
        let refusal = |root_url, client_id, token| {
            account(args(root_url, client_id, token, dir.path())).err().unwrap().to_string()
        };
        assert!(refusal(None, Some("me"), Some("s")).starts_with("--root-url"));
        assert!(refusal(Some("http://x"), None, Some("s")).starts_with("--client-id"));
        assert!(refusal(Some("http://x"), Some("me"), None).starts_with("--access-token"));
        assert!(refusal(None, None, None).contains("root-credentials.json cannot be read"));
    }
}
