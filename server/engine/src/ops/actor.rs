//! Who makes a change, for the audit.

use serde_json::Value;
use sqlx::PgConnection;
use tenure_domain::audit::Entry;
use tenure_store::audit;

/// The caller of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    pub client_id: String,
    /// Trace id of the request, if there is one.
    pub trace_id: Option<String>,
    /// True for a command that uses the database: its standard error is no log.
    is_local: bool,
}

impl Actor {
    #[must_use]
    pub fn new(client_id: impl Into<String>) -> Self {
        Self { client_id: client_id.into(), trace_id: None, is_local: false }
    }

    /// Returns this actor with the trace id of its request.
    #[must_use]
    pub fn traced(self, trace_id: Option<String>) -> Self {
        Self { trace_id, ..self }
    }

    /// Returns the user who runs a command that uses the database.
    #[must_use]
    pub fn local(user: &str) -> Self {
        Self { is_local: true, ..Self::new(format!("local:{user}")) }
    }

    /// Records a change in its transaction.
    pub async fn record(&self, transaction: &mut PgConnection, entry: Entry) -> Result<Recorded<'_>, sqlx::Error> {
        let id = audit::record(transaction, &self.client_id, self.trace_id.as_deref(), &entry).await?;
        Ok(Recorded { id, actor: self, entry })
    }

    /// Records a change that is made in slices, one transaction each: the first slice adds the row,
    /// and the others replace its detail.
    pub async fn record_slice<'a>(
        &'a self,
        transaction: &mut PgConnection,
        recorded: &mut Option<Recorded<'a>>,
        entry: Entry,
    ) -> Result<(), sqlx::Error> {
        match recorded {
            Some(recorded) => recorded.amend(transaction, entry.detail).await,
            None => {
                *recorded = Some(self.record(transaction, entry).await?);
                Ok(())
            }
        }
    }
}

/// A recorded change whose transaction has not committed yet.
#[derive(Debug)]
#[must_use = "log the change after the commit"]
pub struct Recorded<'a> {
    id: i64,
    actor: &'a Actor,
    entry: Entry,
}

impl Recorded<'_> {
    /// `audit.id`.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Replaces the detail.
    pub async fn amend(&mut self, transaction: &mut PgConnection, detail: Value) -> Result<(), sqlx::Error> {
        audit::amend(transaction, self.id, &detail.to_string()).await?;
        self.entry.detail = detail;
        Ok(())
    }

    /// Logs the change, unless a command made it. Call it after the commit.
    pub fn log(self) {
        let Self { id, actor: Actor { client_id, trace_id, is_local }, entry } = self;
        if *is_local {
            return;
        }
        let Entry { action, object, detail } = entry;
        tracing::info!(
            audit.id = id,
            client.id = client_id.as_str(),
            action = action.name(),
            object.kind = action.kind().as_str(),
            object.id = object,
            detail = %detail,
            trace.id = trace_id.as_deref(),
            "audit"
        );
    }
}
