//! The HTTP client: signs requests, retries them where that helps, and decodes answers.

use std::path::Path;
use std::sync::{Arc, Once, PoisonError, RwLock};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, IF_MATCH, RETRY_AFTER};
use reqwest::{Certificate, Method, StatusCode, Url};
use serde::de::DeserializeOwned;
use tenure_api::credentials::{AccessToken, Credentials};
use tenure_api::dates::Timestamp;
use tenure_api::errors::ErrorCode;
use tenure_api::hawk::{SignRequest, authorization_header};
use tenure_api::ids::SessionId;
use tokio::time::Instant;

use crate::calls::{CallCounts, Calls};
use crate::clock::{ServerClock, http_date};
use crate::wire::ErrorAnswer;
use crate::{Error, RetryPolicy, retry};

const API_PATH: &str = "/api/queue/v1";
pub(crate) const TENURE_API: &str = "/api/tenure/v1";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const STORE_REDIRECTS: usize = 5;
/// Below the 90 s after which servers close an idle connection.
const IDLE_CONNECTION: Duration = Duration::from_secs(60);
/// In characters.
const MESSAGE_MAX: usize = 500;
const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
const JSON: &str = "application/json";
/// All characters except the unreserved ones, which no URL library rewrites.
const PATH_PARAMETER: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A client of the queue. Clones are cheap and share connections.
///
/// Every call fails with [`Error::Refused`] if the server refuses it, for example without the
/// scope, and with [`Error::Network`] without an answer. `# Errors` sections list further causes
/// only.
///
/// ```
/// use tenure_client::{AccessToken, Client, Credentials};
///
/// let access_token = AccessToken::new("secret".to_owned());
/// let root = Credentials { client_id: "root".to_owned(), access_token, certificate: None };
/// let client = Client::builder().root_url("http://127.0.0.1:8080").credentials(root).build()?;
/// # drop(client);
/// # Ok::<(), tenure_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientInner>,
    /// Shared by clones, so that clones of a claim's client sign with renewed credentials.
    credentials: Option<Arc<RwLock<Arc<Credentials>>>>,
    retry: RetryPolicy,
    /// Session of its claims.
    session: Option<SessionId>,
}

struct ClientInner {
    http: reqwest::Client,
    store: reqwest::Client,
    api: Url,
    root_url: String,
    clock: ServerClock,
    calls: Calls,
}

/// Collects the settings of a [`Client`].
///
/// ```
/// use tenure_client::{Client, RetryPolicy};
///
/// let patient = RetryPolicy::default().retries(20);
/// let client = Client::builder().root_url("http://127.0.0.1:8080").retry_policy(patient).build()?;
/// # drop(client);
/// # Ok::<(), tenure_client::Error>(())
/// ```
#[derive(Default)]
pub struct ClientBuilder {
    root_url: String,
    credentials: Option<Credentials>,
    retry: RetryPolicy,
    authorities: Vec<Certificate>,
}

impl ClientBuilder {
    /// Sets the URL below which the server serves `/api/queue/v1`.
    ///
    /// ```
    /// # use tenure_client::Client;
    /// let client = Client::builder().root_url("http://127.0.0.1:8080/").build()?;
    /// # drop(client);
    /// # Ok::<(), tenure_client::Error>(())
    /// ```
    #[must_use]
    pub fn root_url(mut self, root_url: &str) -> Self {
        root_url.trim_end_matches('/').clone_into(&mut self.root_url);
        self
    }

    /// Sets the credentials that sign requests. Without them, requests are unsigned.
    ///
    /// ```
    /// # use tenure_client::{AccessToken, Client, Credentials};
    /// let access_token = AccessToken::new("secret".into());
    /// let root = Credentials { client_id: "root".into(), access_token, certificate: None };
    /// let builder = Client::builder().credentials(root);
    /// # let _ = builder;
    /// ```
    #[must_use]
    pub fn credentials(self, credentials: Credentials) -> Self {
        Self { credentials: Some(credentials), ..self }
    }

    /// Sets the retry policy.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure_client::{Client, RetryPolicy};
    /// let patient = RetryPolicy::default().retries(20).longest_pause(Duration::from_secs(60));
    /// let builder = Client::builder().retry_policy(patient);
    /// # let _ = builder;
    /// ```
    #[must_use]
    pub fn retry_policy(self, retry: RetryPolicy) -> Self {
        Self { retry, ..self }
    }

    /// Trusts the authorities in a PEM file in addition to the system's.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate.
    ///
    /// ```
    /// # use std::path::Path;
    /// # use tenure_client::Client;
    /// assert!(Client::builder().ca_file(Path::new("does-not-exist.pem")).is_err());
    /// ```
    pub fn ca_file(mut self, file: &Path) -> Result<Self, Error> {
        let what = || format!("{} cannot be read as CA certificates", file.display());
        let pem = std::fs::read(file).map_err(Error::of_file(what()))?;
        let found = Certificate::from_pem_bundle(&pem);
        let found = found.map_err(|error| Error::of_file(what())(std::io::Error::other(error)))?;
        if found.is_empty() {
            return Err(Error::of_file(what())(std::io::Error::other("it has no certificate")));
        }
        self.authorities.extend(found);
        Ok(self)
    }

    /// Builds the client without sending a request.
    ///
    /// # Errors
    /// The root URL is invalid, or TLS settings cannot be read.
    ///
    /// ```
    /// let client = tenure_client::Client::builder().root_url("https://tenure.example.com").build()?;
    /// assert_eq!(client.root_url(), "https://tenure.example.com");
    /// # Ok::<(), tenure_client::Error>(())
    /// ```
    pub fn build(self) -> Result<Client, Error> {
        let problem = |problem: String| Error::RootUrl(problem);
        let mut api = Url::parse(&self.root_url)
            .map_err(|e| problem(format!("{:?} is not a URL such as http://127.0.0.1:8080 ({e})", self.root_url)))?;
        if !matches!(api.scheme(), "http" | "https") || api.host_str().is_none() || api.query().is_some() {
            return Err(problem(format!("{:?} must be http://host or https://host", self.root_url)));
        }
        api.set_path(&format!("{}{API_PATH}", api.path().trim_end_matches('/')));
        install_tls_provider();
        let authorities = &self.authorities;
        let http = http_client(reqwest::redirect::Policy::none, &api, authorities)?;
        let store = http_client(|| reqwest::redirect::Policy::limited(STORE_REDIRECTS), &api, authorities)?;
        let (clock, calls) = (ServerClock::default(), Calls::default());
        let shared = Arc::new(ClientInner { http, store, api, root_url: self.root_url, clock, calls });
        Ok(Client { shared, credentials: self.credentials.map(place_of), retry: self.retry, session: None })
    }
}

fn http_client(
    redirects: impl Fn() -> reqwest::redirect::Policy,
    api: &Url,
    authorities: &[Certificate],
) -> Result<reqwest::Client, Error> {
    let builder = || {
        reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_CONNECTION)
            .redirect(redirects())
            .user_agent(concat!("tenure-worker/", env!("CARGO_PKG_VERSION")))
    };
    let client = match builder().tls_certs_merge(authorities.iter().cloned()).build() {
        // A bare container has no CA certificates, and this server needs none.
        Err(_) if api.scheme() == "http" => builder().tls_certs_only([]).build(),
        client => client,
    };
    client.map_err(Error::Network)
}

fn place_of(credentials: Credentials) -> Arc<RwLock<Arc<Credentials>>> {
    Arc::new(RwLock::new(Arc::new(credentials)))
}

/// The TLS library needs one cryptography provider per process. A provider chosen by the program
/// stays.
fn install_tls_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails only if a provider is installed.
        let _already = rustls::crypto::ring::default_provider().install_default();
    });
}

pub(crate) struct Call {
    pub method: Method,
    /// Below [`API_PATH`]; parameters are encoded by [`parameter`].
    pub path: String,
    pub body: Option<Vec<u8>>,
    pub timeout: Duration,
    pub own: Own,
}

/// Options of calls to Tenure's own API.
#[derive(Default)]
pub(crate) struct Own {
    /// Path of the API; [`API_PATH`] by default.
    pub api: Option<&'static str>,
    /// Without the question mark.
    pub query: Option<String>,
    pub idempotency_key: Option<String>,
    /// JSON by default.
    pub content_type: Option<&'static str>,
    /// Version that the changed object must have.
    pub if_match: Option<i64>,
}

pub(crate) struct Answer<T> {
    pub value: T,
    pub date: Option<Timestamp>,
    /// Time at which the answered attempt was sent.
    pub sent: Instant,
    /// Time at which the answer began to arrive.
    pub received: Instant,
}

/// Encodes a path parameter; `/` becomes `%2F`.
pub(crate) fn parameter(value: &dyn std::fmt::Display) -> String {
    utf8_percent_encode(&value.to_string(), PATH_PARAMETER).to_string()
}

impl Client {
    /// Returns a builder with default settings.
    ///
    /// ```
    /// # use tenure_client::Client;
    /// let client = Client::builder().root_url("https://tenure.example.com/").build()?;
    /// assert_eq!(client.root_url(), "https://tenure.example.com");
    /// # Ok::<(), tenure_client::Error>(())
    /// ```
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Builds a client from environment variables: `TENURE_URL` and, to sign requests,
    /// `TENURE_CLIENT_ID`, `TENURE_ACCESS_TOKEN` and `TENURE_CERTIFICATE`. In place of an absent
    /// one it reads Taskcluster's: `TASKCLUSTER_ROOT_URL`, `TASKCLUSTER_CLIENT_ID` and so on. A
    /// certificate is read only beside an access token with the same prefix.
    ///
    /// # Errors
    /// A variable is missing, or the root URL is invalid.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), tenure_client::Error> {
    /// let client = tenure_client::Client::from_env()?;
    /// println!("using {}", client.root_url());
    /// # Ok(()) }
    /// ```
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(read: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let variable = |name| read(name).filter(|value| !value.is_empty());
        let root_url = variable("TENURE_URL").or_else(|| variable("TASKCLUSTER_ROOT_URL"));
        let builder = Self::builder().root_url(&root_url.ok_or(Error::NotInEnvironment("TENURE_URL"))?);
        let client_id = variable("TENURE_CLIENT_ID").or_else(|| variable("TASKCLUSTER_CLIENT_ID"));
        let Some(client_id) = client_id else { return builder.build() };
        let (access_token, certificate) = match variable("TENURE_ACCESS_TOKEN") {
            Some(token) => (token, variable("TENURE_CERTIFICATE")),
            None => (
                variable("TASKCLUSTER_ACCESS_TOKEN").ok_or(Error::NotInEnvironment("TENURE_ACCESS_TOKEN"))?,
                variable("TASKCLUSTER_CERTIFICATE"),
            ),
        };
        let access_token = AccessToken::new(access_token);
        builder.credentials(Credentials { client_id, access_token, certificate }).build()
    }

    /// Returns the root URL without a trailing slash.
    ///
    /// ```
    /// # use tenure_client::Client;
    /// let client = Client::builder().root_url("http://127.0.0.1:8080/").build()?;
    /// assert_eq!(client.root_url(), "http://127.0.0.1:8080");
    /// # Ok::<(), tenure_client::Error>(())
    /// ```
    #[must_use]
    pub fn root_url(&self) -> &str {
        &self.shared.root_url
    }

    /// Estimates the server's time from its answers, for `created` and `deadline` of a task. Before
    /// the first answer this is the local time; [`server_time`](Self::server_time) asks the server.
    ///
    /// ```no_run
    /// # fn example(client: &tenure_client::Client) {
    /// println!("the server's clock shows {}", client.now());
    /// # }
    /// ```
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Returns counts of the calls of this client and its clones, for monitoring.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn example(client: &tenure_client::Client) {
    /// if client.calls().silent_for > Duration::from_secs(60) {
    ///     println!("no answer for a minute");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        self.shared.calls.counts()
    }

    pub(crate) fn note_call(&self, answer: &Result<reqwest::Response, reqwest::Error>) {
        self.shared.calls.note(answer);
    }

    /// Returns this client with other credentials.
    ///
    /// ```
    /// # use tenure_client::{AccessToken, Client, Credentials};
    /// # fn example(client: &Client) {
    /// let access_token = AccessToken::new("secret".into());
    /// let other = Credentials { client_id: "ci/build".into(), access_token, certificate: None };
    /// let client = client.with_credentials(other);
    /// # drop(client);
    /// # }
    /// ```
    #[must_use]
    pub fn with_credentials(&self, credentials: Credentials) -> Self {
        Self { credentials: Some(place_of(credentials)), ..self.clone() }
    }

    /// Returns this client with another retry policy.
    ///
    /// ```
    /// # fn example(client: &tenure_client::Client) {
    /// let impatient = client.with_retry_policy(tenure_client::RetryPolicy::never());
    /// # drop(impatient);
    /// # }
    /// ```
    #[must_use]
    pub fn with_retry_policy(&self, retry: RetryPolicy) -> Self {
        Self { retry, ..self.clone() }
    }

    /// Returns this client with a session, which must be of the same queue and worker as its
    /// claims. They end with the session at the latest.
    ///
    /// ```no_run
    /// # use tenure_client::{Client, WorkerName};
    /// # async fn example(client: &Client, me: &WorkerName) -> Result<(), tenure_client::Error> {
    /// let queue = "proj/linux".parse().expect("a queue");
    /// let session = client.start_session(&me.session(&queue)).await?;
    /// let claims = client.with_session(session.session_id).claim_work(&queue, me, 4).await?;
    /// # let _ = claims;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_session(&self, session: SessionId) -> Self {
        Self { session: Some(session), ..self.clone() }
    }

    /// Returns this client without retries, for callers with their own retry loop: a pause
    /// requested by the server must not use up a lease.
    pub(crate) fn once(&self) -> Self {
        self.with_retry_policy(self.retry.clone().retries(0))
    }

    /// Replaces the credentials of this client and all its clones.
    pub(crate) fn renew_credentials(&self, credentials: Credentials) {
        if let Some(shared) = &self.credentials {
            // Each change is one assignment, so a panic elsewhere leaves no partial state.
            *shared.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(credentials);
        }
    }

    pub(crate) fn credentials(&self) -> Option<Arc<Credentials>> {
        let shared = self.credentials.as_ref()?;
        Some(Arc::clone(&shared.read().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Returns the retry policy.
    ///
    /// ```
    /// # use tenure_client::{Client, RetryPolicy};
    /// # fn example(client: &Client) {
    /// let impatient = client.with_retry_policy(client.retry_policy().clone().retries(1));
    /// # drop(impatient);
    /// # }
    /// ```
    #[must_use]
    pub fn retry_policy(&self) -> &RetryPolicy {
        &self.retry
    }

    /// Returns the client for requests that are not API calls.
    pub(crate) fn http(&self) -> &reqwest::Client {
        &self.shared.http
    }

    /// Returns the client for reading artifacts, which follows redirects.
    pub(crate) fn store(&self) -> &reqwest::Client {
        &self.shared.store
    }

    /// Resolves a URL of an answer, which may omit the server.
    pub(crate) fn absolute(&self, url: &str) -> Result<Url, Error> {
        let url = self.shared.api.join(url).map_err(|_| Error::SignedUrl("it is not a URL"))?;
        if matches!(url.scheme(), "http" | "https") {
            Ok(url)
        } else {
            Err(Error::SignedUrl("it is not http or https"))
        }
    }

    /// Retries until answered, finally refused, or out of retries.
    pub(crate) async fn call<T: DeserializeOwned>(&self, call: &Call) -> Result<Answer<T>, Error> {
        let mut tried = 0;
        let mut clock_mended = false;
        loop {
            tried += 1;
            let correction = self.shared.clock.offset();
            let error = match self.try_once(call).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // A wrong local clock may have invalidated the signature; the answer has corrected it.
            if !clock_mended && self.is_of_the_clock(&error, correction) {
                clock_mended = true;
                continue;
            }
            let Some(pause) = self.retry.pause_after(tried, &error, retry::jitter()) else {
                return Err(error);
            };
            tracing::debug!(path = call.path, tried, error = crate::error::chain(&error), "retrying a request");
            tokio::time::sleep(pause).await;
        }
    }

    /// True if signing with this clock correction may be the cause.
    fn is_of_the_clock(&self, error: &Error, correction: i64) -> bool {
        error.status() == Some(401) && self.shared.clock.has_moved(correction)
    }

    async fn try_once<T: DeserializeOwned>(&self, call: &Call) -> Result<Answer<T>, Error> {
        let sent = Instant::now();
        let response = self.send(call).await?;
        let received = Instant::now();
        let date = header(response.headers(), DATE.as_str()).and_then(http_date);
        let status = response.status();
        let retry_after = header(response.headers(), RETRY_AFTER.as_str()).and_then(|s| s.trim().parse().ok());
        let body = response.bytes().await.map_err(|error| Error::Network(error.without_url()))?;
        // Without a body, as after a deletion, the value is null.
        let json: &[u8] = if status == StatusCode::NO_CONTENT { b"null" } else { &body };
        // The location of an artifact is a redirect, with the URL in its body too.
        if status.is_success() || status == StatusCode::SEE_OTHER {
            let answer = |value| Answer { value, date, sent, received };
            serde_json::from_slice(json).map(answer).map_err(Error::BadAnswer)
        } else {
            Err(refusal(status.as_u16(), &body, retry_after.map(Duration::from_secs)))
        }
    }

    /// Sends a call with a streamed answer, twice if the clock was wrong.
    pub(crate) async fn open(&self, call: &Call) -> Result<reqwest::Response, Error> {
        let correction = self.shared.clock.offset();
        match self.open_once(call).await {
            Err(error) if self.is_of_the_clock(&error, correction) => self.open_once(call).await,
            answer => answer,
        }
    }

    async fn open_once(&self, call: &Call) -> Result<reqwest::Response, Error> {
        let response = self.send(call).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = header(response.headers(), RETRY_AFTER.as_str()).and_then(|s| s.trim().parse().ok());
        let body = response.bytes().await.map_err(|error| Error::Network(error.without_url()))?;
        Err(refusal(status.as_u16(), &body, retry_after.map(Duration::from_secs)))
    }

    async fn send(&self, call: &Call) -> Result<reqwest::Response, Error> {
        let mut url = self.shared.api.clone();
        let queue_api = self.shared.api.path();
        let root = queue_api.strip_suffix(API_PATH).unwrap_or_default();
        let api = call.own.api.map_or_else(|| queue_api.to_owned(), |api| format!("{root}{api}"));
        // Parameters are encoded already; `set_path` keeps that.
        url.set_path(&format!("{api}{}", call.path));
        url.set_query(call.own.query.as_deref());
        let signature = self.signature(call, &url);
        let mut request = self.shared.http.request(call.method.clone(), url).timeout(call.timeout);
        if let Some(signature) = signature {
            request = request.header(AUTHORIZATION, signature);
        }
        if let Some(key) = &call.own.idempotency_key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        if let Some(version) = call.own.if_match {
            request = request.header(IF_MATCH, format!("\"{version}\""));
        }
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, call.own.content_type.unwrap_or(JSON)).body(body.clone());
        }
        let answer = request.send().await;
        self.note_call(&answer);
        let response = answer.map_err(|error| Error::Network(error.without_url()))?;
        if let Some(date) = header(response.headers(), DATE.as_str()).and_then(http_date) {
            self.shared.clock.learn(date);
        }
        Ok(response)
    }

    fn signature(&self, call: &Call, url: &Url) -> Option<String> {
        let credentials = self.credentials()?;
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let resource = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        Some(authorization_header(
            &credentials,
            &SignRequest {
                method: call.method.as_str(),
                resource: &resource,
                host: url.host_str().unwrap_or_default(),
                port: url.port_or_known_default().unwrap_or_default(),
                timestamp: self.now().time().timestamp(),
                nonce: &nonce,
                payload: call.body.as_deref().map(|body| (call.own.content_type.unwrap_or(JSON), body)),
            },
        ))
    }
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn refusal(status: u16, body: &[u8], retry_after: Option<Duration>) -> Error {
    // A proxy sends no error body of ours; its status suffices.
    let answer: ErrorAnswer = serde_json::from_slice(body).unwrap_or_default();
    if let Some(holder) = answer.holder() {
        return Error::DuplicateTask { holder, entry: answer.entry(), message: first_line(&answer.message) };
    }
    refusal_in_words(status, answer.code, &answer.message, retry_after)
}

pub(crate) fn refusal_in_words(status: u16, code: String, message: &str, retry_after: Option<Duration>) -> Error {
    let message = first_line(message);
    if code == ErrorCode::SessionExists.as_str() {
        return Error::SessionExists(message);
    }
    if code == ErrorCode::SessionEnded.as_str() {
        return Error::SessionEnded(message);
    }
    Error::Refused { status, code, message, retry_after }
}

/// Further lines repeat the call, which is in the log already.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(MESSAGE_MAX).collect()
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
