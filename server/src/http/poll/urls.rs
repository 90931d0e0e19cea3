//! Making and checking signed URLs.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use tenure_api::credentials::SigningKey;
use tenure_api::sas::{Grant, Permission, Resource, verify};
use tenure_api::states::Priority;

use super::error::PollError;
use super::request::PollQuery;
use crate::auth::Now;
use tenure_domain::message::QueueName;

/// Where the poll API is below the root URL.
pub const PATH: &str = "/api/tenure/v1/messages";
/// The account in the signed text. Azure has one in its host names; here there is one for all.
const ACCOUNT: &str = "tenure";
/// A URL is valid from this long before it was issued, for clients whose clocks are behind.
const STARTS_BEFORE: TimeDelta = TimeDelta::minutes(15);
/// And for this long.
const VALID_FOR: TimeDelta = TimeDelta::minutes(30);
/// What a poller may do. Putting messages is not among it.
const POLLER: [Permission; 3] = [Permission::Read, Permission::Update, Permission::Process];

/// Makes and checks signed URLs.
pub struct PollUrls {
    keys: Vec<SigningKey>,
    root_url: String,
    visibility_seconds: u64,
}

/// The URLs of one queue.
pub struct SignedUrls {
    /// Gets messages.
    pub poll: String,
    /// Deletes one, after its id and receipt were put in.
    pub delete: String,
}

impl PollUrls {
    /// Signs with the first of these keys, accepts any. URLs hide messages for `visibility` unless the request has another
    /// time.
    #[must_use]
    pub fn new(keys: Vec<SigningKey>, root_url: &str, visibility: std::time::Duration) -> Self {
        let visibility_seconds = visibility.as_secs() + u64::from(visibility.subsec_nanos() > 0);
        Self { keys, root_url: root_url.trim_end_matches('/').to_owned(), visibility_seconds }
    }

    /// The URLs of a task queue, highest priority first, and when they expire.
    #[must_use]
    pub fn sign(&self, queue: i32, now: DateTime<Utc>) -> (Vec<SignedUrls>, DateTime<Utc>) {
        let now = now.duration_trunc(TimeDelta::seconds(1)).unwrap_or(now);
        let (start, expiry) = (now - STARTS_BEFORE, now + VALID_FOR);
        let urls = Priority::ALL.iter().map(|&priority| self.sign_one(QueueName { queue, priority }, start, expiry));
        (urls.collect(), expiry)
    }

    fn sign_one(&self, queue: QueueName, start: DateTime<Utc>, expiry: DateTime<Utc>) -> SignedUrls {
        let name = queue.to_string();
        let resource = Resource { account: ACCOUNT, queue: &name };
        let sign = |permissions: &[Permission]| {
            let grant = Grant::new(permissions, start, expiry);
            // Without TLS in front, a URL for https only would be of no use.
            let grant = if self.root_url.starts_with("https:") { grant.over_https_only() } else { grant };
            grant.sign(&resource, &self.keys[0])
        };
        let base = format!("{}{PATH}/{name}/messages", self.root_url);
        SignedUrls {
            poll: format!("{base}?visibilitytimeout={}&{}", self.visibility_seconds, sign(&POLLER)),
            delete: format!("{base}/{{{{messageId}}}}?popreceipt={{{{popReceipt}}}}&{}", sign(&[Permission::Process])),
        }
    }

    /// What a request's URL grants.
    pub(super) fn verify(&self, queue: &str, query: &PollQuery, now: Now) -> Result<Grant, PollError> {
        let now = DateTime::from_timestamp_millis(now.server_ms).unwrap_or_default();
        Ok(verify(&Resource { account: ACCOUNT, queue }, query.query(), &self.keys, now)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_url_allows_to_put_messages() {
        let urls = PollUrls::new(vec![SigningKey::new(b"key")], "http://localhost", std::time::Duration::from_secs(1));
        let (signed, _) = urls.sign(7, DateTime::UNIX_EPOCH);
        assert_eq!(signed.len(), Priority::ALL.len());
        for urls in signed {
            assert!(urls.poll.contains("&sp=rup&") && urls.delete.contains("&sp=p&"), "{} {}", urls.poll, urls.delete);
        }
    }
}
