//! The measured service: Tenure, or for comparison an Azure queue service or RabbitMQ.

use tenure_api::credentials::Credentials;

use super::BenchError;
use super::azure::Azure;
use tenure_driver::http::Account;

/// Target and credentials of a run's calls.
#[derive(Debug)]
pub(crate) enum Service {
    /// A server of the Queue API.
    Tenure(Account),
    /// A service with message queues only.
    Azure(Azure),
    /// A broker's URL.
    Rabbit(String),
}

impl Service {
    pub(crate) fn url(&self) -> &str {
        match self {
            Self::Tenure(account) => &account.root_url,
            Self::Azure(azure) => azure.url(),
            Self::Rabbit(url) => url,
        }
    }

    /// Credentials for calls of the Queue API.
    pub(crate) fn credentials(&self) -> Result<&Credentials, BenchError> {
        match self {
            Self::Tenure(account) => Ok(&account.credentials),
            Self::Azure(_) | Self::Rabbit(_) => Err(BenchError::NotOnAzure),
        }
    }
}
