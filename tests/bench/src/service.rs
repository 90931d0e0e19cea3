//! The measured service: Tenure, or for comparison an Azure queue service or RabbitMQ.

use tenure_api::credentials::Credentials;

use super::BenchError;
use super::azure::Azure;
use tenure_driver::http::Account;

#[derive(Debug)]
pub(crate) enum Service {
    Tenure(Account),
    Azure(Azure),
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

    pub(crate) fn credentials(&self) -> Result<&Credentials, BenchError> {
        match self {
            Self::Tenure(account) => Ok(&account.credentials),
            Self::Azure(_) | Self::Rabbit(_) => Err(BenchError::NotOnAzure),
        }
    }
}
