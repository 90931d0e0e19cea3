//! The hosts on which a database may be: one, or several of which one takes writes.

use sqlx::postgres::PgConnectOptions;

/// At least one.
#[derive(Debug, Clone)]
pub struct Hosts {
    all: Vec<PgConnectOptions>,
}

impl Hosts {
    /// These, in the order in which they are tried; nothing if there are none.
    pub fn new(all: Vec<PgConnectOptions>) -> Option<Self> {
        (!all.is_empty()).then_some(Self { all })
    }

    /// How many there are.
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
