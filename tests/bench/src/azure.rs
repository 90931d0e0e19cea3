//! An Azure queue service, such as Azurite: its URLs and their signatures. An account SAS creates
//! and deletes queues. The service SAS of one queue puts, gets and deletes messages, as in Tenure's
//! signed URLs.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta};
use hmac::{Hmac, KeyInit as _, Mac as _};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;
use tenure_api::credentials::SigningKey;
use tenure_api::sas::{Grant, Permission, Resource, VERSION};

use super::BenchError;
use super::messages::QueueUrls;
use tenure_driver::clock::unix_millis;
use tenure_driver::wire::Target;

/// Visibility timeout in seconds: the default of Tenure's URLs.
const VISIBILITY_SECONDS: u32 = 300;
/// Signatures are valid from this long ago, in case the clocks differ.
const STARTS_BEFORE: TimeDelta = TimeDelta::minutes(15);
/// Longer than a run takes.
const VALID_FOR: TimeDelta = TimeDelta::hours(12);
const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";

pub(crate) struct Azure {
    url: String,
    account: String,
    secret: Vec<u8>,
    key: SigningKey,
}

impl fmt::Debug for Azure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Azure({} at {})", self.account, self.url)
    }
}

impl Azure {
    /// Returns the account at this URL. Unless the account has its own host, the URL ends with its
    /// name.
    pub(crate) fn new(url: &str, account: &str, key: &str) -> Result<Self, BenchError> {
        let secret = STANDARD.decode(key).map_err(|error| BenchError::AzureKey(error.to_string()))?;
        let key = SigningKey::new(&secret);
        Ok(Self { url: url.to_owned(), account: account.to_owned(), secret, key })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Signed path of a queue, to create or delete it.
    pub(crate) fn queue_resource(&self, queue: &str) -> Result<String, BenchError> {
        Ok(format!("{}/{queue}?{}", self.prefix()?, self.account_sas(unix_millis())))
    }

    pub(crate) fn urls(&self, queue: &str) -> Result<QueueUrls, BenchError> {
        let base = format!("{}/{queue}/messages", self.prefix()?);
        let now = DateTime::from_timestamp_millis(unix_millis()).unwrap_or_default();
        let sign = |permission| {
            let resource = Resource { account: &self.account, queue };
            Grant::new(&[permission], now - STARTS_BEFORE, now + VALID_FOR).sign(&resource, &self.key)
        };
        Ok(QueueUrls {
            poll: format!("{base}?visibilitytimeout={VISIBILITY_SECONDS}&{}", sign(Permission::Process)),
            delete: format!("{base}/{{{{messageId}}}}?popreceipt={{{{popReceipt}}}}&{}", sign(Permission::Process)),
            put: Some(format!("{base}?{}", sign(Permission::Add))),
        })
    }

    fn prefix(&self) -> Result<String, BenchError> {
        Ok(Target::parse(&self.url)?.prefix)
    }

    /// Returns a signature that allows creating and deleting queues. Layout: "Create an account
    /// SAS" in the documentation of Azure Storage.
    fn account_sas(&self, now_millis: i64) -> String {
        let now = DateTime::from_timestamp_millis(now_millis).unwrap_or_default();
        let expiry = (now + VALID_FOR).format(TIME).to_string();
        // Create and delete ("dc") queues ("q") as containers ("c").
        let (permissions, services, types, none) = ("dc", "q", "c", "");
        let lines = [self.account.as_str(), permissions, services, types, none, &expiry, none, none, VERSION, none];
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes a key of any length");
        mac.update(lines.join("\n").as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let encode = |value| utf8_percent_encode(value, NON_ALPHANUMERIC);
        format!(
            "sv={VERSION}&ss={services}&srt={types}&sp={permissions}&se={}&sig={}",
            encode(&expiry),
            encode(&signature)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn azure() -> Azure {
        Azure::new("http://127.0.0.1:10001/devstoreaccount1", "devstoreaccount1", "c2VjcmV0").unwrap()
    }

    #[test]
    fn account_signature_covers_documented_lines() {
        // Computed by openssl over the documented lines with the key "secret".
        assert_eq!(
            azure().account_sas(1_800_000_000_000),
            "sv=2015-04-05&ss=q&srt=c&sp=dc&se=2027%2D01%2D15T20%3A00%3A00Z&sig=1IUecSIg43YN4PyE84r7GVbXYxgUNzR0DUzwNpf%2BR5E%3D"
        );
        assert!(matches!(Azure::new("http://h", "a", "not base64"), Err(BenchError::AzureKey(_))));
    }

    #[test]
    fn the_paths_of_messages_stand_below_the_account() {
        let urls = azure().urls("jobs-1").unwrap();
        assert!(urls.poll.starts_with("/devstoreaccount1/jobs-1/messages?visibilitytimeout=300&sv="), "{}", urls.poll);
        assert!(urls.put.unwrap().contains("&sp=a&"));
        assert!(urls.delete.starts_with("/devstoreaccount1/jobs-1/messages/{{messageId}}?popreceipt={{popReceipt}}&"));
    }
}
