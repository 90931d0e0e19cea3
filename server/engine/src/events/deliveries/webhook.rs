//! Sends messages as HTTP requests.
//!
//! Clients choose the URLs. Each address is checked when it is connected to: a literal one before
//! the request, the addresses of a name by the resolver. So a name cannot change its address
//! between check and connection. TLS verifies the name nevertheless. Redirects are not followed,
//! and proxies of the environment are not used.

use std::error::Error as StdError;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use chrono::DateTime;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use tenure_api::credentials::SigningKey;
use tenure_domain::delivery::address::DeliverTo;
use tenure_domain::delivery::message::Message;
use tenure_domain::delivery::{ANSWER_MAX, URL_BYTES_MAX};
use url::Host;

use crate::clock::real_now;
use crate::http_client::{describe, provide_cryptography};

/// More of an answer is not read.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Of the body of an answer, for people.
const SHOWN_BYTES_MAX: usize = 1 << 10;
/// Shorter than receivers commonly keep connections.
const IDLE_CONNECTION: Duration = Duration::from_secs(20);
const IDLE_CONNECTIONS_MAX: usize = 2;
const NOT_ALLOWED: &str = "has an address that is not public; the operator can allow it with --deliver-to";

type BoxError = Box<dyn StdError + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[error("the host has an address that is not public; the operator can allow it with --deliver-to")]
struct NotAllowed;

/// True if the address may be connected to. Unencrypted messages need an address that the operator
/// has listed.
fn may_reach(deliver_to: &DeliverTo, address: IpAddr, encrypted: bool) -> bool {
    if encrypted { deliver_to.allows(address) } else { deliver_to.lists(address) }
}

/// Checks the URL of a receiver. Refusals complete "the URL".
pub(super) fn check(text: &str, deliver_to: &DeliverTo) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("must be a URL such as https://example.com/hook ({error})"))?;
    // The normal form is stored, and checked again before each message.
    if url.as_str().len() > URL_BYTES_MAX {
        return Err(format!("must have at most {URL_BYTES_MAX} bytes"));
    }
    match url.scheme() {
        "https" => {}
        "http" if !deliver_to.is_empty() => {}
        "http" => return Err("must begin with https://; http is for addresses in --deliver-to".to_owned()),
        _ => return Err("must begin with https://".to_owned()),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must have no user and no password; signatures prove who sends".to_owned());
    }
    match literal_address(url.host_str().unwrap_or_default())? {
        Some(address) if !may_reach(deliver_to, address, url.scheme() == "https") => Err(NOT_ALLOWED.to_owned()),
        Some(_) | None => Ok(url),
    }
}

/// Returns the address that a host of a URL is, spelled in any way; none for a name, whose addresses
/// are checked when they are connected to.
pub(super) fn literal_address(host: &str) -> Result<Option<IpAddr>, String> {
    Ok(match Host::parse(host).map_err(|error| format!("must have a valid host ({error})"))? {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
    })
}

struct CheckedResolver {
    deliver_to: Arc<DeliverTo>,
    encrypted: bool,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (deliver_to, encrypted) = (Arc::clone(&self.deliver_to), self.encrypted);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> =
                found.filter(|address| may_reach(&deliver_to, address.ip(), encrypted)).collect();
            if allowed.is_empty() {
                return Err(BoxError::from(NotAllowed));
            }
            let allowed: Addrs = Box::new(allowed.into_iter());
            Ok(allowed)
        })
    }
}

/// An answer of a receiver.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// How long it asks to wait.
    pub(super) retry_after: Option<Duration>,
    /// The beginning of the body.
    pub(super) body: String,
}

impl Answer {
    pub(super) fn describe(&self) -> String {
        format!("the receiver answered {}", self.status)
    }
}

/// The clients are made by the first message: certificates take time and memory.
pub(super) struct Sender {
    deliver_to: Arc<DeliverTo>,
    https: OnceLock<Client>,
    http: OnceLock<Client>,
}

impl Sender {
    pub(super) fn new(deliver_to: DeliverTo) -> Self {
        Self { deliver_to: Arc::new(deliver_to), https: OnceLock::new(), http: OnceLock::new() }
    }

    pub(super) fn deliver_to(&self) -> &Arc<DeliverTo> {
        &self.deliver_to
    }

    /// Sends a message, and returns the answer or why there is none.
    pub(super) async fn send(&self, url: &str, message: &Message, keys: &[SigningKey]) -> Result<Answer, String> {
        let url = check(url, &self.deliver_to).map_err(|why| format!("the URL {why}"))?;
        let client = self.client(url.scheme() == "https")?;
        let seconds = real_now().timestamp();
        let request = client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", seconds)
            .header("webhook-signature", message.signature(keys, seconds))
            .body(message.body.clone());
        let response = request.send().await.map_err(describe)?;
        Ok(read(response).await)
    }

    fn client(&self, encrypted: bool) -> Result<&Client, String> {
        let made = if encrypted { &self.https } else { &self.http };
        if let Some(client) = made.get() {
            return Ok(client);
        }
        provide_cryptography();
        let builder = self.builder(encrypted);
        // Without encryption it needs no certificates, which a bare container lacks.
        let builder = if encrypted { builder.https_only(true) } else { builder.tls_certs_only([]) };
        let client = builder.build().map_err(describe)?;
        Ok(made.get_or_init(|| client))
    }

    fn builder(&self, encrypted: bool) -> reqwest::ClientBuilder {
        Client::builder()
            .dns_resolver(CheckedResolver { deliver_to: Arc::clone(&self.deliver_to), encrypted })
            .redirect(Policy::none())
            .no_proxy()
            .referer(false)
            .http1_only()
            .timeout(ANSWER_MAX)
            .pool_idle_timeout(IDLE_CONNECTION)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
    }
}

/// Reads the beginning of the body. The status is an answer even if the body breaks off.
async fn read(mut response: Response) -> Answer {
    let (status, retry_after) = (response.status().as_u16(), retry_after(response.headers()));
    let (mut shown, mut bytes) = (Vec::new(), 0);
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes += chunk.len();
        let room = SHOWN_BYTES_MAX - shown.len();
        shown.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if bytes > ANSWER_BYTES_MAX {
            break;
        }
    }
    Answer { status, retry_after, body: String::from_utf8_lossy(&shown).into_owned() }
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    (DateTime::parse_from_rfc2822(text).ok()?.to_utc() - real_now()).to_std().ok()
}

#[cfg(test)]
mod tests {
    use tenure_domain::delivery::address::Cidr;

    use super::*;

    fn listed(blocks: &[&str]) -> DeliverTo {
        DeliverTo::new(blocks.iter().map(|block| block.parse::<Cidr>().unwrap()).collect())
    }

    #[test]
    fn url_leads_to_a_public_address() {
        let nothing = listed(&[]);
        for url in ["https://example.com/hook?key=1", "https://1.1.1.1:8443/", "https://[2606:4700::1111]/"] {
            assert!(check(url, &nothing).is_ok(), "{url}");
        }
        for url in [
            "",
            "example.com",
            "http://example.com/",
            "file:///etc/passwd",
            "ftp://example.com/",
            "gopher://127.0.0.1/",
            "https://user@example.com/",
            "https://user:password@example.com/",
            "https://127.0.0.1/",
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://127.0.0.1./",
            "https://%31%32%37.0.0.1/",
            "https://１２７.0.0.1/",
            "https://0/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]/",
            "https://[64:ff9b::7f00:1]/",
            "https://169.254.169.254/latest/meta-data/",
            "https://[fd00:ec2::254]/",
            &format!("https://example.com/{}", "x".repeat(URL_BYTES_MAX)),
            // Its normal form is longer.
            &format!("https://example.com/{}", "ä".repeat(URL_BYTES_MAX / 4)),
        ] {
            assert!(check(url, &nothing).is_err(), "{url}");
        }
    }

    #[test]
    fn unencrypted_url_needs_a_listed_address() {
        let home = listed(&["127.0.0.0/8"]);
        for url in ["http://127.0.0.1:8080/", "https://127.1/", "http://localhost/", "https://example.com/"] {
            assert!(check(url, &home).is_ok(), "{url}");
        }
        for url in ["http://1.1.1.1/", "http://10.0.0.1/", "https://10.0.0.1/"] {
            assert!(check(url, &home).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn name_is_resolved_to_allowed_addresses() {
        let resolve = async |blocks: &[&str], encrypted: bool| {
            let resolver = CheckedResolver { deliver_to: Arc::new(listed(blocks)), encrypted };
            let found = resolver.resolve("localhost".parse().unwrap()).await;
            found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>()).map_err(|error| error.to_string())
        };
        let refused = Err("the host has an address that is not public; the operator can allow it with --deliver-to");
        assert_eq!(resolve(&[], true).await.as_ref().map_err(String::as_str).map(Vec::len), refused);
        assert!(resolve(&["10.0.0.0/8"], false).await.is_err());
        for encrypted in [true, false] {
            let found = resolve(&["127.0.0.0/8"], encrypted).await.unwrap();
            assert!(!found.is_empty() && found.iter().all(|address| address.is_ipv4() && address.is_loopback()));
        }
    }

    #[test]
    fn time_to_wait_is_seconds_or_a_date() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert!(read("Thu, 31 Dec 2899 23:59:59 GMT").is_some_and(|wait| wait > Duration::from_secs(3_600)));
        for text in ["", "soon", "-1", "1.5", "Fri, 31 Dec 1999 23:59:59 GMT"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
