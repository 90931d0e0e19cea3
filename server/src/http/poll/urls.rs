//! Signs and verifies URLs.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use tenure_api::credentials::SigningKey;
use tenure_api::sas::{Grant, Permission, Resource, verify};
use tenure_api::states::Priority;

use super::error::PollError;
use super::request::PollQuery;
use crate::auth::Now;
use tenure_domain::message::QueueName;

/// Below the root URL.
pub const PATH: &str = "/api/tenure/v1/messages";
/// Azure has accounts in host names; here one serves all.
const ACCOUNT: &str = "tenure";
/// For clients with slow clocks.
const STARTS_BEFORE: TimeDelta = TimeDelta::minutes(15);
const VALID_FOR: TimeDelta = TimeDelta::minutes(30);
/// Putting messages is not included.
const POLLER: [Permission; 3] = [Permission::Read, Permission::Update, Permission::Process];

pub struct PollUrls {
    keys: Vec<SigningKey>,
    root_url: String,
    visibility_seconds: u64,
}

pub struct SignedUrls {
    /// Gets messages.
    pub poll: String,
    /// Deletes a message; has placeholders for its id and receipt.
    pub delete: String,
}

impl PollUrls {
    /// Signs with the first key and accepts all. `visibility` is the default hidden time.
    #[must_use]
    pub fn new(keys: Vec<SigningKey>, root_url: &str, visibility: std::time::Duration) -> Self {
        let visibility_seconds = visibility.as_secs() + u64::from(visibility.subsec_nanos() > 0);
        Self { keys, root_url: root_url.trim_end_matches('/').to_owned(), visibility_seconds }
    }

    /// Highest priority first, with the expiry.
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
            // Without TLS in front, an https-only URL would be useless.
            let grant = if self.root_url.starts_with("https:") { grant.over_https_only() } else { grant };
            grant.sign(&resource, &self.keys[0])
        };
        let base = format!("{}{PATH}/{name}/messages", self.root_url);
        SignedUrls {
            poll: format!("{base}?visibilitytimeout={}&{}", self.visibility_seconds, sign(&POLLER)),
            delete: format!("{base}/{{{{messageId}}}}?popreceipt={{{{popReceipt}}}}&{}", sign(&[Permission::Process])),
        }
    }

    pub(super) fn verify(&self, queue: &str, query: &PollQuery, now: Now) -> Result<Grant, PollError> {
        let now = DateTime::from_timestamp_millis(now.server_ms).unwrap_or_default();
        Ok(verify(&Resource { account: ACCOUNT, queue }, query.query(), &self.keys, now)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_do_not_allow_putting_messages() {
        let urls = PollUrls::new(vec![SigningKey::new(b"key")], "http://localhost", std::time::Duration::from_secs(1));
        let (signed, _) = urls.sign(7, DateTime::UNIX_EPOCH);
        assert_eq!(signed.len(), Priority::ALL.len());
        for urls in signed {
            assert!(urls.poll.contains("&sp=rup&") && urls.delete.contains("&sp=p&"), "{} {}", urls.poll, urls.delete);
        }
    }
}
