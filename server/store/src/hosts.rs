//! Hosts of a database, one of which accepts writes.

use sqlx::postgres::PgConnectOptions;

/// Never empty.
#[derive(Debug, Clone)]
pub struct Hosts {
    all: Vec<PgConnectOptions>,
}

impl Hosts {
    /// In the order of attempts. None if empty.
    pub fn new(all: Vec<PgConnectOptions>) -> Option<Self> {
        (!all.is_empty()).then_some(Self { all })
    }

    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn get(&self, host: usize) -> &PgConnectOptions {
        &self.all[host]
    }
}

impl From<PgConnectOptions> for Hosts {
    fn from(options: PgConnectOptions) -> Self {
        Self { all: vec![options] }
    }
}
