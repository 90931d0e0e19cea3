//! Tasks enqueued from SQL: the function, its rights, and the pass that creates the tasks.

mod attacks;
mod cost;
mod pass;

use sqlx::postgres::PgConnectOptions;
use tenure_store::enqueued;

use crate::support::*;

/// A server, and a database role that may only enqueue, as the client `shop`.
pub struct Shop {
    pub database: TestDatabase,
    pub queue: Queue,
    pub role: String,
    options: PgConnectOptions,
}

impl Shop {
    pub async fn open() -> Self {
        let (database, queue) = start().await;
        let role = format!("shop_{}", Uuid::new_v4().simple());
        run_sql(database.pool(), &format!("CREATE ROLE {role} LOGIN PASSWORD 'shop'")).await;
        let options = database.options().clone().username(&role).password("shop").application_name("shop");
        let shop = Self { database, queue, role, options };
        shop.allow().await;
        shop
    }

    pub async fn allow(&self) {
        let mut transaction = self.database.pool().begin().await.unwrap();
        let allowed = enqueued::allow(&mut transaction, &self.role, "shop").await.unwrap().unwrap();
        assert_eq!((allowed.function.as_str(), allowed.may_create), ("public.tenure_enqueue", false));
        transaction.commit().await.unwrap();
        self.queue.engine.facts.refresh().await.unwrap();
    }

    pub async fn deny(&self) {
        let mut transaction = self.database.pool().begin().await.unwrap();
        assert!(enqueued::deny(&mut transaction, &self.role).await.unwrap());
        transaction.commit().await.unwrap();
        self.queue.engine.facts.refresh().await.unwrap();
    }

    /// A session of the application.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.options).await.unwrap()
    }

    /// Number of tasks.
    pub async fn tasks(&self) -> i64 {
        number(self.database.pool(), "SELECT count(*) FROM tasks").await
    }

    /// Number of rows that are neither handled nor refused.
    pub async fn waiting(&self) -> i64 {
        number(self.database.pool(), "SELECT count(*) FROM enqueued WHERE error IS NULL").await
    }

    /// The reasons of refused rows, in order.
    pub async fn refused(&self) -> Vec<String> {
        let refused = enqueued::list_refused(self.database.pool(), None, 100).await.unwrap();
        refused.into_iter().map(|row| row.error).collect()
    }

    /// Runs the pass until it finds nothing.
    pub async fn handle(&self) {
        let mut failures = 0;
        loop {
            match self.queue.run_pass("enqueued").await {
                Ok(report) if report.done == 0 => return,
                Ok(_) => {}
                // A machine under load may be too slow for the timeouts; the driver tries again, too.
                Err(error) => {
                    failures += 1;
                    assert!(failures < 5, "{error:?}");
                }
            }
        }
    }

    pub async fn finish(self) {
        let Self { database, queue, role, options: _ } = self;
        // A session has temporary tables of the role until it has ended.
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1::text";
        eventually("the role has no session", async || {
            sqlx::query_scalar::<_, i64>(sessions).bind(&role).fetch_one(database.pool()).await.unwrap() == 0
        })
        .await;
        run_sql(database.pool(), &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
        finish(database, queue).await;
    }
}

pub async fn enqueue(conn: &mut PgConnection, payload: &Value, options: &Value) -> Result<TaskId, sqlx::Error> {
    let id: String = sqlx::query_scalar("SELECT tenure_enqueue($1, $2::text::jsonb, $3::text::jsonb)")
        .bind(QUEUE)
        .bind(payload.to_string())
        .bind(options.to_string())
        .fetch_one(conn)
        .await?;
    Ok(id.parse().unwrap())
}

/// The message and the hint of the database.
pub fn said(error: &sqlx::Error) -> String {
    let error = error.as_database_error().unwrap().downcast_ref::<sqlx::postgres::PgDatabaseError>();
    format!("{} {}", error.message(), error.hint().unwrap_or_default())
}
