//! Scopes of clients, in the order of their ids.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// Clients per statement. It reads all their scopes, and returns those within the limit of bytes.
const AT_ONCE: i64 = 50;

#[derive(Debug, Clone)]
pub struct ClientScopes {
    pub client_id: String,
    /// Before expansion.
    pub scopes: Vec<String>,
    pub disabled: bool,
    pub expires: Option<DateTime<Utc>>,
}

#[derive(Debug, Default)]
pub struct ListedScopes {
    pub clients: Vec<ClientScopes>,
    /// True if there are further clients.
    pub is_cut: bool,
}

/// Lists the first clients by id, up to `limit`, until their scopes take `bytes` bytes.
pub async fn list_client_scopes(
    conn: &mut PgConnection,
    limit: usize,
    bytes: i64,
) -> Result<ListedScopes, sqlx::Error> {
    let (mut listed, mut after, mut left) = (ListedScopes::default(), String::new(), bytes);
    loop {
        let rows = sqlx::query!(
            r#"-- page_client_scopes
            WITH first AS MATERIALIZED (
                SELECT client_id, scopes, disabled, expires FROM clients
                WHERE client_id COLLATE "C" > $1 ORDER BY client_id COLLATE "C" LIMIT $2
            ),
            measured AS MATERIALIZED (SELECT f.*, octet_length(f.scopes::text) AS bytes FROM first f),
            added AS (
                SELECT m.*, sum(m.bytes) OVER (ORDER BY m.client_id COLLATE "C" ROWS UNBOUNDED PRECEDING) AS total
                FROM measured m
            )
            SELECT a.client_id AS "client_id!", CASE WHEN a.total - a.bytes < $3 THEN a.scopes END AS "scopes?",
                   a.disabled AS "disabled!", a.expires AS "expires?", a.bytes AS "bytes!"
            FROM added a ORDER BY a.client_id COLLATE "C""#,
            after,
            AT_ONCE,
            left
        )
        .fetch_all(&mut *conn)
        .await?;
        let is_last = i64::try_from(rows.len()).is_ok_and(|number| number < AT_ONCE);
        for row in rows {
            let Some(scopes) = row.scopes.filter(|_| listed.clients.len() < limit) else {
                listed.is_cut = true;
                return Ok(listed);
            };
            left -= i64::from(row.bytes);
            after.clone_from(&row.client_id);
            let (client_id, disabled, expires) = (row.client_id, row.disabled, row.expires);
            listed.clients.push(ClientScopes { client_id, scopes, disabled, expires });
        }
        if is_last {
            return Ok(listed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDatabase;

    #[tokio::test]
    async fn listed_clients_are_limited_in_number_and_bytes() {
        let database = TestDatabase::create().await;
        let fill = "INSERT INTO clients (client_id, token, scopes)
                    SELECT 'c' || lpad(n::text, 3, '0'), '', ARRAY[repeat('x', 998)] FROM generate_series(1, 120) n";
        sqlx::query(fill).execute(database.pool()).await.unwrap();
        let mut conn = database.connect().await;
        for (limit, bytes, number, is_cut) in [
            (1_000, i64::MAX, 120, false),
            (120, i64::MAX, 120, false),
            (119, i64::MAX, 119, true),
            (1_000, 70_000, 70, true),
            (1_000, 70_001, 71, true),
            (1_000, 1, 1, true),
        ] {
            let listed = list_client_scopes(&mut conn, limit, bytes).await.unwrap();
            assert_eq!((listed.clients.len(), listed.is_cut), (number, is_cut), "{limit} {bytes}");
            let ids = listed.clients.iter().map(|client| client.client_id.as_str());
            assert!(ids.eq((1..=number).map(|n| format!("c{n:03}"))), "{limit} {bytes}");
        }
        drop(conn);
        database.finish().await;
    }
}
