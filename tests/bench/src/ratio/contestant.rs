//! A running server for comparison.

use std::path::{Path, PathBuf};

use clap::Parser as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tenure_driver::http::Account;

use crate::{BenchError, Settings};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Contestant {
    pub(super) name: String,
    #[serde(default)]
    credentials: PathBuf,
    server_pid: u32,
    #[serde(default)]
    pg_pid: Option<u32>,
    #[serde(default)]
    pub(super) database_url: String,
    /// Only for RabbitMQ, which has only this and its process.
    amqp_url: Option<String>,
}

impl Contestant {
    pub(super) fn read(path: &Path) -> Result<Self, BenchError> {
        read(path)
    }

    pub(super) fn account(&self) -> Result<Account, BenchError> {
        read(&self.credentials)
    }

    /// Settings that call this server, from a mode's name and flags as on the command line.
    pub(super) fn settings(&self, arguments: &[String]) -> Result<Settings, BenchError> {
        let words = ["tenure-bench".to_owned()].into_iter().chain(arguments.iter().cloned());
        let mut settings = Settings::try_parse_from(words).map_err(|error| BenchError::Generator(error.to_string()))?;
        settings.server_pid = Some(self.server_pid);
        if let Some(url) = &self.amqp_url {
            settings.amqp_url = Some(url.clone());
            return Ok(settings);
        }
        settings.credentials = Some(self.credentials.clone());
        settings.pg_pid = self.pg_pid;
        settings.database_url = Some(self.database_url.clone());
        Ok(settings)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, BenchError> {
    let failed = |reason: String| BenchError::ContestantFile { path: path.display().to_string(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
impl Contestant {
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            credentials: PathBuf::new(),
            server_pid: 0,
            pg_pid: None,
            database_url: String::new(),
            amqp_url: None,
        }
    }
}
