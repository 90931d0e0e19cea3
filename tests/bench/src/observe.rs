//! Costs of a window: processor time of server, PostgreSQL's sessions and generator, WAL, and batch
//! sizes of statements.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use tenure_driver::http::Client;
use tokio::time::sleep;

use super::cost::{Cost, Processes, SessionSeconds};
use super::database::Probe;
use super::service::Service;
use super::{BenchError, Settings};

const LOOKS: u32 = 5;
const BATCH_MEMBERS: &str = "tenure_batch_members_";
/// Time of unseen sessions, which began and ended between two samples, and of the postmaster.
const OTHERS: &str = "others";

#[derive(Debug)]
pub(crate) struct Observer {
    processes: Processes,
    probe: Option<Probe>,
    /// Present only with a database: then the server is Tenure or the floor.
    metrics: Option<Client>,
    looks: BTreeMap<u32, BTreeMap<String, u32>>,
}

#[derive(Debug)]
pub(crate) struct Reading {
    cost: Cost,
    sessions: SessionSeconds,
    wal: Option<i64>,
    batches: BTreeMap<String, Batches>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Batches {
    members: f64,
    statements: f64,
}

impl Batches {
    pub(crate) fn mean(self) -> Option<f64> {
        (self.statements > 0.0).then(|| self.members / self.statements)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) cost: Cost,
    /// In bytes.
    pub(crate) wal: Option<i64>,
    pub(crate) batches: BTreeMap<String, Batches>,
    /// Processor seconds by observed activity of the sessions.
    pub(crate) sessions: BTreeMap<String, f64>,
}

impl Observer {
    pub(crate) async fn new(settings: &Settings, service: &Service) -> Result<Self, BenchError> {
        let mut probe = match &settings.database_url {
            Some(url) if settings.azure_queue.is_none() => Some(Probe::connect(url).await?),
            _ => None,
        };
        let backend = match &mut probe {
            Some(probe) => Some(probe.backend_pid().await?),
            None => None,
        };
        let metrics = probe.is_some().then(|| Client::new(service.url())).transpose()?;
        let processes = Processes::find(settings.server_pid, settings.pg_pid, backend);
        Ok(Self { processes, probe, metrics, looks: BTreeMap::new() })
    }

    pub(crate) async fn durability(&mut self) -> Result<Option<String>, BenchError> {
        match &mut self.probe {
            Some(probe) => Ok(Some(probe.durability().await?)),
            None => Ok(None),
        }
    }

    /// Reads everything at the start of a window; excludes the cost of these readings.
    pub(crate) async fn begin(&mut self) -> Result<Reading, BenchError> {
        let batches = self.batches().await?;
        let wal = self.wal().await?;
        let (cost, sessions) = self.processes.cost();
        Ok(Reading { cost, sessions, wal, batches })
    }

    pub(crate) async fn end(&mut self, began: &Reading) -> Result<Used, BenchError> {
        let (cost, sessions) = self.processes.cost();
        let cost = cost.since(&began.cost);
        let wal = self.wal().await?.zip(began.wal).map(|(end, start)| end - start);
        let mut batches = self.batches().await?;
        for (operation, sizes) in &mut batches {
            let before = began.batches.get(operation).copied().unwrap_or_default();
            sizes.members -= before.members;
            sizes.statements -= before.statements;
        }
        let sessions = self.by_session(&sessions, &began.sessions, cost.postgres);
        Ok(Used { cost, wal, batches, sessions })
    }

    /// Samples PostgreSQL's sessions several times within a window of this length. Returns only on
    /// an error.
    pub(crate) async fn look_at_sessions(&mut self, window: Duration) -> Result<Infallible, BenchError> {
        let Some(probe) = &mut self.probe else { return Ok(std::future::pending().await) };
        loop {
            sleep(window / LOOKS).await;
            for (pid, doing) in probe.sessions().await? {
                *self.looks.entry(pid).or_default().entry(doing).or_default() += 1;
            }
        }
    }

    fn by_session(&self, end: &SessionSeconds, began: &SessionSeconds, all: Option<f64>) -> BTreeMap<String, f64> {
        let mut used = BTreeMap::new();
        for (pid, looks) in &self.looks {
            let Some(seconds) = end.get(pid) else { continue };
            let most = looks.iter().max_by_key(|(_, times)| **times);
            if let Some((doing, _)) = most {
                *used.entry(doing.clone()).or_default() += seconds - began.get(pid).copied().unwrap_or(0.0);
            }
        }
        let seen: f64 = used.values().sum();
        if let Some(all) = all.filter(|_| !used.is_empty()) {
            used.insert(OTHERS.to_owned(), all - seen);
        }
        used
    }

    async fn wal(&mut self) -> Result<Option<i64>, BenchError> {
        match &mut self.probe {
            Some(probe) => Ok(Some(probe.wal_position().await?)),
            None => Ok(None),
        }
    }

    async fn batches(&mut self) -> Result<BTreeMap<String, Batches>, BenchError> {
        let Some(client) = &mut self.metrics else { return Ok(BTreeMap::new()) };
        let reply = client.exchange_unsigned("GET", "/metrics", None).await?;
        Ok(parse_batches(&String::from_utf8_lossy(&reply.body)))
    }
}

fn parse_batches(page: &str) -> BTreeMap<String, Batches> {
    let mut batches: BTreeMap<String, Batches> = BTreeMap::new();
    let figures = page.lines().filter_map(|line| line.strip_prefix(BATCH_MEMBERS)?.split_once("{operation=\""));
    for (figure, rest) in figures {
        let Some((operation, value)) = rest.split_once("\"} ") else { continue };
        let Ok(value) = value.trim().parse::<f64>() else { continue };
        match figure {
            "sum" => batches.entry(operation.to_owned()).or_default().members = value,
            "count" => batches.entry(operation.to_owned()).or_default().statements = value,
            _ => {}
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_a_batch_is_read_from_sum_and_count() {
        let page = "# HELP tenure_batch_members x\ntenure_batch_members_bucket{operation=\"create\",le=\"1\"} 4\n\
                    tenure_batch_members_sum{operation=\"create\"} 30\ntenure_batch_members_count{operation=\"create\"} 4\n\
                    tenure_batch_members_sum{operation=\"idle\"} 0\ntenure_batch_members_count{operation=\"idle\"} 0\n";
        let batches = parse_batches(page);
        assert_eq!(batches["create"].mean(), Some(7.5));
        assert_eq!(batches["idle"].mean(), None);
        assert_eq!(batches.len(), 2);
    }

    #[test]
    fn session_time_belongs_to_most_frequent_activity() {
        let looks = [
            (1, BTreeMap::from([("claim".to_owned(), 3), ("COMMIT".to_owned(), 1)])),
            (2, BTreeMap::from([("claim".to_owned(), 1)])),
            (3, BTreeMap::from([("gone".to_owned(), 1)])),
        ];
        let processes = Processes::find(None, None, None);
        let observer = Observer { processes, probe: None, metrics: None, looks: BTreeMap::from(looks) };
        let used = observer.by_session(
            &SessionSeconds::from([(1, 3.0), (2, 1.5)]),
            &SessionSeconds::from([(1, 1.0)]),
            Some(5.0),
        );
        assert_eq!(used, BTreeMap::from([("claim".to_owned(), 3.5), (OTHERS.to_owned(), 1.5)]));
    }
}
