//! What is measured: a Tenure, or for comparison a queue service of Azure or a RabbitMQ.

use tenure_api::credentials::Credentials;

use super::BenchError;
use super::azure::Azure;
use tenure_driver::http::Account;

/// Where the calls of a run go, and as whom.
#[derive(Debug)]
pub(crate) enum Service {
    /// A server of the Queue API.
    Tenure(Account),
    /// One that has nothing but message queues.
    Azure(Azure),
    /// A broker, by its URL.
    Rabbit(String),
}

impl Service {
    /// Where to connect to.
    pub(crate) fn url(&self) -> &str {
        match self {
            Self::Tenure(account) => &account.root_url,
            Self::Azure(azure) => azure.url(),
            Self::Rabbit(url) => url,
        }
    }

    /// Who signs calls of the Queue API.
    pub(crate) fn credentials(&self) -> Result<&Credentials, BenchError> {
        match self {
            Self::Tenure(account) => Ok(&account.credentials),
            Self::Azure(_) | Self::Rabbit(_) => Err(BenchError::NotOnAzure),
        }
    }
}
