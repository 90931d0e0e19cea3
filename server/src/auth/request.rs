//! Reads and checks a request's claim about its sender. Pure.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tenure_api::credentials::{AccessToken, Certificate, CertificateError, SigningKey};
use tenure_api::hawk::bewit::{Bewit, split_url};
use tenure_api::hawk::{Ext, ExtError, Header, Target, payload_hash};

use super::expansion::Roles;
use super::own_issuer::{OwnIssuer, is_named_as_issuer};
use super::signed_as::{escaped_again, hosts, path_of_list};
use super::task_credentials::{self, TaskCredentials};
use super::worker_credentials::{self, WorkerAccount, WorkerCredentials};
use super::{Account, AuthFailure, Principal};
use tenure_domain::roles::assume_any;
use tenure_domain::scopes::{ScopeSet, valid_pattern};
use tenure_store::clients::CLIENT_ID_MAX;

/// Between a signature's timestamp and real time.
pub const TIMESTAMP_SKEW_SECONDS: u64 = 15 * 60;
/// An issuer needs it to give temporary credentials an id.
const NAMING_SCOPE: &str = "auth:create-client:";

/// Both clocks, in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Real time, by which clients date their signatures.
    pub real_ms: i64,
    /// The server's clock, which dates its own certificates; in tests it can be ahead of real time.
    pub server_ms: i64,
}

/// The parts of a request that authentication uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestParts<'a> {
    pub method: &'a str,
    /// Path and query exactly as received, not decoded.
    pub target: &'a str,
    pub host: &'a str,
    pub forwarded_port: Option<&'a str>,
    pub forwarded_proto: Option<&'a str>,
    pub authorization: Option<&'a str>,
    pub content_type: Option<&'a str>,
    pub body: &'a [u8],
    /// True if another service has the body and checks its hash.
    pub body_is_elsewhere: bool,
}

impl<'a> RequestParts<'a> {
    pub(super) fn signed_target(&self) -> Target<'a> {
        let (host, own_port) = split_host(self.host);
        let forwarded = self.forwarded_port.and_then(|ports| first_forwarded(ports).parse().ok());
        let secure = self.forwarded_proto.is_some_and(|protos| first_forwarded(protos).eq_ignore_ascii_case("https"));
        let port = forwarded.or(secure.then_some(443)).or(own_port).unwrap_or(80);
        Target { method: self.method, resource: self.target, host, port }
    }

    /// True if the request carries credentials.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        self.authorization.is_some() || split_url(self.target).is_some()
    }

    fn is_signed_by(&self, header: &Header<'_>, key: &SigningKey) -> bool {
        let target = self.signed_target();
        let signed = |resource, host| header.signed_by(key, &Target { resource, host, ..target });
        let mut resources = std::iter::once(self.target).chain(path_of_list(self.target));
        resources.any(|resource| hosts(target.host).any(|host| signed(resource, host)))
    }

    fn has_hash(&self, hash: &str) -> bool {
        payload_hash(self.content_type.unwrap_or_default(), self.body).matches(hash)
    }
}

/// The signed hash of a body that has not arrived yet.
pub struct SignedPayload<'a> {
    hash: Cow<'a, str>,
    content_type: Cow<'a, str>,
}

impl<'a> SignedPayload<'a> {
    /// Returns none if the signature does not cover the body.
    #[must_use]
    pub fn of(authorization: Option<&'a str>, content_type: Option<&'a str>) -> Option<Self> {
        let hash = Header::find_hash(authorization?)?.into();
        Some(Self { hash, content_type: content_type.unwrap_or_default().into() })
    }

    #[must_use]
    pub fn into_owned(self) -> SignedPayload<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        SignedPayload { hash: owned(self.hash), content_type: owned(self.content_type) }
    }

    pub fn check(&self, body: &[u8]) -> Result<(), AuthFailure> {
        let parts = RequestParts { content_type: Some(&self.content_type), body, ..RequestParts::default() };
        if parts.has_hash(&self.hash) { Ok(()) } else { Err(AuthFailure::PayloadHash) }
    }
}

/// Returns the value of the proxy nearest to the client. Proxies behind it may have appended their
/// own.
#[must_use]
pub fn first_forwarded(values: &str) -> &str {
    values.split(',').next().unwrap_or_default().trim()
}

/// Keeps the brackets of an IPv6 address.
fn split_host(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        Some(_) | None => (host, None),
    }
}

/// Owner of the proving token or key.
pub(super) enum Issuer<'a> {
    Client(&'a str),
    /// The server, for a claim.
    Tasks,
    /// The server, for a registered worker.
    Workers,
}

pub(super) enum Proof<'a> {
    Header(Header<'a>),
    Url { bewit: Bewit, resource: Cow<'a, str> },
}

impl Proof<'_> {
    fn id(&self) -> &str {
        match self {
            Self::Header(header) => header.id,
            Self::Url { bewit, .. } => &bewit.id,
        }
    }

    fn ext(&self) -> Option<&str> {
        match self {
            Self::Header(header) => header.ext,
            Self::Url { bewit, .. } => bewit.ext.as_deref(),
        }
    }

    /// Expiry of the signature itself.
    fn expires_ms(&self) -> Option<i64> {
        match self {
            Self::Header(_) => None,
            Self::Url { bewit, .. } => Some(bewit.expires.saturating_mul(1000)),
        }
    }
}

/// A request's unproven claim about its sender.
pub(super) enum Claim<'a> {
    Hawk { proof: Box<Proof<'a>>, certificate: Option<Box<Certificate>>, authorized_scopes: Option<Vec<String>> },
    Basic { client_id: String, token: AccessToken },
}

type Proven<'a> = (Box<Proof<'a>>, Box<Certificate>, Option<Vec<String>>);

impl<'a> Claim<'a> {
    /// Reads the claim of a request; none if it has no credentials.
    pub(super) fn read(request: &RequestParts<'a>) -> Result<Option<Self>, AuthFailure> {
        let proof = match (request.authorization, split_url(request.target)) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err(AuthFailure::HeaderAndBewit),
            (None, Some(url)) => {
                // HEAD requires the same scopes as GET.
                if !["GET", "HEAD"].iter().any(|method| request.method.eq_ignore_ascii_case(method)) {
                    return Err(AuthFailure::BewitMethod);
                }
                Proof::Url { bewit: Bewit::parse(url.bewit)?, resource: url.resource }
            }
            (Some(authorization), None) => {
                let (scheme, rest) = authorization.trim().split_once(' ').unwrap_or((authorization, ""));
                if scheme.eq_ignore_ascii_case("basic") {
                    return read_basic(rest.trim()).map(Some).ok_or(AuthFailure::BasicSyntax);
                }
                if !scheme.eq_ignore_ascii_case("hawk") {
                    return Err(AuthFailure::Scheme);
                }
                Proof::Header(Header::parse(authorization)?)
            }
        };
        let ext = proof.ext().map(Ext::decode).transpose()?.unwrap_or_default();
        if !ext.authorized_scopes.iter().flatten().all(|scope| valid_pattern(scope)) {
            return Err(ExtError.into());
        }
        let certificate = ext.certificate().map(Certificate::parse).transpose()?.map(Box::new);
        Ok(Some(Self::Hawk { proof: Box::new(proof), certificate, authorized_scopes: ext.authorized_scopes }))
    }

    pub(super) fn issuer(&self) -> Result<Issuer<'_>, AuthFailure> {
        match self {
            Self::Basic { client_id, .. } => Ok(Issuer::Client(client_id)),
            Self::Hawk { proof, certificate: None, .. } => Ok(Issuer::Client(proof.id())),
            Self::Hawk { proof, certificate: Some(certificate), .. } => {
                if is_named_as_issuer(task_credentials::ISSUER, certificate, proof.id()) {
                    return Ok(Issuer::Tasks);
                }
                if is_named_as_issuer(worker_credentials::ISSUER, certificate, proof.id()) {
                    return Ok(Issuer::Workers);
                }
                Ok(Issuer::Client(certificate.issuer(proof.id())?))
            }
        }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Basic { client_id, .. } => client_id,
            Self::Hawk { proof, .. } => proof.id(),
        }
    }

    /// True if the sender's scopes depend on roles.
    pub(super) fn assumes_roles(&self) -> bool {
        match self {
            Self::Basic { .. } => true,
            Self::Hawk { certificate, authorized_scopes, .. } => {
                certificate.as_ref().is_none_or(|certificate| assume_any(certificate.scopes()))
                    || authorized_scopes.as_deref().is_some_and(assume_any)
            }
        }
    }

    pub(super) fn check_task(
        self,
        tasks: &TaskCredentials,
        roles: Roles<'_>,
        request: &RequestParts<'_>,
        now: Now,
    ) -> Result<Principal, AuthFailure> {
        let (proof, certificate, authorized_scopes) = self.check_own(tasks.issuer(), request, now)?;
        let expires_ms = Some(certificate.expiry_ms());
        let scopes = Arc::new(roles.expand(certificate.into_scopes())?);
        Ok(lent(principal(&proof, scopes, expires_ms, authorized_scopes, roles)?))
    }

    /// Checks a claim of a registered worker. A removed or expired worker may only ask whether it
    /// should stop, so that a machine removed by mistake finds out.
    pub(super) fn check_worker(
        self,
        workers: &WorkerCredentials,
        worker: &WorkerAccount,
        roles: Roles<'_>,
        request: &RequestParts<'_>,
        now: Now,
    ) -> Result<Principal, AuthFailure> {
        let (proof, certificate, authorized_scopes) = self.check_own(workers.issuer(), request, now)?;
        if !worker.has_got(&certificate) {
            return Err(AuthFailure::UnknownWorker(proof.id().to_owned()));
        }
        let expires_ms = Some(certificate.expiry_ms());
        let scopes = worker.scopes(certificate.into_scopes());
        Ok(lent(principal(&proof, Arc::new(roles.expand(scopes)?), expires_ms, authorized_scopes, roles)?))
    }

    pub(super) fn check_issued(&self, workers: &WorkerCredentials) -> Result<(), AuthFailure> {
        match self {
            Self::Hawk { proof, certificate: Some(certificate), .. } => {
                Ok(workers.issuer().verify(certificate, proof.id()).map(drop)?)
            }
            Self::Hawk { certificate: None, .. } | Self::Basic { .. } => Err(CertificateError::Issuer.into()),
        }
    }

    /// Checks a certificate of one of the server's own issuers. Only the server's clock and only
    /// the end matter, since the server dated the certificate. If the database's clock is set back,
    /// a claim and its credentials stay valid until their end by that clock.
    fn check_own(self, issuer: &OwnIssuer, request: &RequestParts<'_>, now: Now) -> Result<Proven<'a>, AuthFailure> {
        let Self::Hawk { proof, certificate: Some(certificate), authorized_scopes } = self else {
            return Err(CertificateError::Issuer.into());
        };
        certificate.check_end(now.server_ms)?;
        let key = issuer.verify(&certificate, proof.id())?.key();
        check_signature(&proof, &key, request, now)?;
        Ok((proof, certificate, authorized_scopes))
    }

    /// Checks the token of HTTP Basic; signatures are checked with the request.
    pub(super) fn check_token(&self, account: &Account) -> Result<(), AuthFailure> {
        let Self::Basic { token, .. } = self else { return Ok(()) };
        let fits = *token == account.token;
        match (account.is_decoy(), fits) {
            (true, _) => Err(AuthFailure::BasicClient),
            (false, false) => Err(AuthFailure::BasicToken),
            (false, true) => Ok(()),
        }
    }

    /// Checks a claim by this client's token. Only after the proof may the caller learn that the
    /// client is disabled or expired, or which scopes it can lend.
    pub(super) fn check(
        self,
        account: &Account,
        roles: Roles<'_>,
        request: &RequestParts<'_>,
        now: Now,
    ) -> Result<Principal, AuthFailure> {
        self.check_token(account)?;
        match self {
            Self::Basic { client_id, token: _ } => {
                account.check_usable()?;
                let (scopes, expires_ms) = (account.scopes(roles)?, account.expires_ms);
                Ok(Principal {
                    client_id: Some(client_id),
                    scopes,
                    expires_ms,
                    is_temporary: false,
                    is_narrowed: false,
                })
            }
            Self::Hawk { proof, certificate: None, authorized_scopes } => {
                check_signature(&proof, &account.key, request, now)?;
                account.check_usable()?;
                principal(&proof, account.scopes(roles)?, account.expires_ms, authorized_scopes, roles)
            }
            Self::Hawk { proof, certificate: Some(certificate), authorized_scopes } => {
                certificate.check_time(now.real_ms).or_else(|_| certificate.check_time(now.server_ms))?;
                let key = certificate.verify(proof.id(), &account.key)?.key();
                check_signature(&proof, &key, request, now)?;
                account.check_usable()?;
                check_lent(&certificate, proof.id(), &*account.scopes(roles)?)?;
                let expires_ms = earlier(account.expires_ms, Some(certificate.expiry_ms()));
                let scopes = Arc::new(roles.expand(certificate.into_scopes())?);
                Ok(lent(principal(&proof, scopes, expires_ms, authorized_scopes, roles)?))
            }
        }
    }
}

/// Marks a caller with lent credentials.
fn lent(principal: Principal) -> Principal {
    Principal { is_temporary: true, ..principal }
}

fn earlier(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    one.into_iter().chain(other).min()
}

fn read_basic(encoded: &str) -> Option<Claim<'static>> {
    let text = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
    // Client ids can contain colons, access tokens cannot.
    let (client_id, token) = text.rsplit_once(':')?;
    Some(Claim::Basic { client_id: client_id.to_owned(), token: AccessToken::new(token.to_owned()) })
}

/// Checks that an issuer has the scopes that it lends, and may give the name.
fn check_lent(certificate: &Certificate, client_id: &str, issuer_scopes: &ScopeSet) -> Result<(), AuthFailure> {
    // Stored with the sender's actions, and may be a part of a key.
    if certificate.is_named() && client_id.len() > CLIENT_ID_MAX {
        return Err(AuthFailure::LongName);
    }
    let naming = certificate.is_named().then(|| format!("{NAMING_SCOPE}{client_id}"));
    let missing = naming.as_deref().filter(|scope| !issuer_scopes.allows(scope));
    match missing.or_else(|| issuer_scopes.first_missing(certificate.scopes())) {
        None => Ok(()),
        Some(scope) => {
            let issuer = certificate.issuer(client_id)?.to_owned();
            Err(AuthFailure::IssuerScope { issuer, scope: scope.to_owned() })
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    Behind,
    Ahead,
}

impl Clock {
    fn of(signed: i64, now: i64) -> Self {
        if signed < now { Self::Behind } else { Self::Ahead }
    }
}

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Behind => "ago (the signer's clock may be behind)",
            Self::Ahead => "in the future (the signer's clock is ahead)",
        })
    }
}

fn check_signature(
    proof: &Proof<'_>,
    key: &SigningKey,
    request: &RequestParts<'_>,
    now: Now,
) -> Result<(), AuthFailure> {
    let header = match proof {
        Proof::Header(header) => header,
        Proof::Url { bewit, resource } => return check_url(bewit, resource, key, request, now),
    };
    if !request.is_signed_by(header, key) {
        return Err(AuthFailure::Mac(describe(&request.signed_target())));
    }
    let now_seconds = now.real_ms.div_euclid(1000);
    let seconds = now_seconds.abs_diff(header.timestamp);
    if seconds > TIMESTAMP_SKEW_SECONDS {
        return Err(AuthFailure::Stale { seconds, clock: Clock::of(header.timestamp, now_seconds) });
    }
    match header.hash {
        Some(hash) if !request.body_is_elsewhere && !request.has_hash(hash) => Err(AuthFailure::PayloadHash),
        Some(_) | None => Ok(()),
    }
}

/// The signer dated the end, so real time is compared.
fn check_url(
    bewit: &Bewit,
    resource: &str,
    key: &SigningKey,
    request: &RequestParts<'_>,
    now: Now,
) -> Result<(), AuthFailure> {
    let target = Target { resource, ..request.signed_target() };
    let signed = |resource: &str| hosts(target.host).any(|host| bewit.signed_by(key, resource, host, target.port));
    if !signed(resource) && !escaped_again(resource).is_some_and(|resource| signed(&resource)) {
        return Err(AuthFailure::Mac(describe(&target)));
    }
    if bewit.is_over(now.real_ms) {
        return Err(AuthFailure::BewitOver);
    }
    Ok(())
}

fn describe(target: &Target<'_>) -> String {
    let shown = target
        .resource
        .char_indices()
        .nth(200)
        .map_or(Cow::Borrowed(target.resource), |(end, _)| Cow::Owned(format!("{}…", &target.resource[..end])));
    format!("{} {shown} for {}:{}", target.method, target.host, target.port)
}

fn principal(
    proof: &Proof<'_>,
    scopes: Arc<ScopeSet>,
    expires_ms: Option<i64>,
    authorized_scopes: Option<Vec<String>>,
    roles: Roles<'_>,
) -> Result<Principal, AuthFailure> {
    let is_narrowed = authorized_scopes.is_some();
    let scopes = match authorized_scopes {
        None => scopes,
        Some(narrowed) => match scopes.first_missing(&narrowed) {
            None => Arc::new(roles.expand(narrowed)?),
            Some(scope) => return Err(AuthFailure::AuthorizedScopes(scope.to_owned())),
        },
    };
    let expires_ms = earlier(expires_ms, proof.expires_ms());
    Ok(Principal { client_id: Some(proof.id().to_owned()), scopes, expires_ms, is_temporary: false, is_narrowed })
}
