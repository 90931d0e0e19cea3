//! The table `roles`.

use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgExecutor};
use tenure_api::dates::Timestamp;

use crate::facts;
use tenure_domain::roles::RoleScopes;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleInfo {
    pub role_id: String,
    /// Before expansion.
    pub scopes: Vec<String>,
    pub description: String,
    pub created: Timestamp,
    pub last_modified: Timestamp,
}

#[derive(Debug, Clone)]
pub struct NewRole {
    pub role_id: String,
    /// Before expansion.
    pub scopes: Vec<String>,
    pub description: String,
}

/// Name of the roles in [`crate::facts`]. A trigger raises their generation.
pub const FACT: &str = "roles";

pub async fn load_all(db: impl PgExecutor<'_>) -> Result<Vec<RoleScopes>, sqlx::Error> {
    sqlx::query_as!(RoleScopes, "-- load_roles\nSELECT role_id, scopes FROM roles").fetch_all(db).await
}

/// Locks roles against changes and returns their generation.
pub async fn lock_all(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!("SELECT generation FROM fact_generations WHERE name = $1 FOR UPDATE -- lock_roles", FACT)
        .fetch_one(conn)
        .await
}

/// Returns the generation of roles. Later reads of roles are at least as new.
pub async fn get_generation(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    facts::get_generations(conn).await?.of.get(FACT).copied().ok_or(sqlx::Error::RowNotFound)
}

pub async fn find(db: impl PgExecutor<'_>, role_id: &str) -> Result<Option<RoleInfo>, sqlx::Error> {
    let row = sqlx::query_as!(
        RoleInfo,
        "-- find_role
        SELECT role_id, scopes, description, created, last_modified FROM roles WHERE role_id = $1",
        role_id,
    )
    .fetch_optional(db)
    .await?;
    Ok(row)
}

pub async fn list(
    db: impl PgExecutor<'_>,
    after: Option<&str>,
    limit: Option<i64>,
) -> Result<Vec<RoleInfo>, sqlx::Error> {
    sqlx::query_as!(
        RoleInfo,
        "-- list_roles
        SELECT role_id, scopes, description, created, last_modified
        FROM roles
        WHERE $1::text IS NULL OR role_id > $1
        ORDER BY role_id
        LIMIT $2",
        after,
        limit,
    )
    .fetch_all(db)
    .await
}

pub async fn create(db: impl PgExecutor<'_>, role: &NewRole) -> Result<RoleInfo, sqlx::Error> {
    sqlx::query_as!(
        RoleInfo,
        "-- create_role
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        INSERT INTO roles (role_id, scopes, description, created, last_modified)
        SELECT $1, $2, $3, now, now FROM db_now
        RETURNING role_id, scopes, description, created, last_modified",
        role.role_id,
        &role.scopes,
        role.description,
    )
    .fetch_one(db)
    .await
}

/// Changes a role. None if it does not exist.
pub async fn update(db: impl PgExecutor<'_>, role: &NewRole) -> Result<Option<RoleInfo>, sqlx::Error> {
    sqlx::query_as!(
        RoleInfo,
        "-- update_role
        WITH db_now AS MATERIALIZED (SELECT now FROM db_now)
        UPDATE roles SET scopes = $2, description = $3, last_modified = db_now.now
        FROM db_now
        WHERE role_id = $1
        RETURNING role_id, scopes, description, created, last_modified",
        role.role_id,
        &role.scopes,
        role.description,
    )
    .fetch_optional(db)
    .await
}

/// Deletes a role. False if it does not exist.
pub async fn delete(transaction: &mut PgConnection, role_id: &str) -> Result<bool, sqlx::Error> {
    // Before the role, which another change locks after this.
    lock_all(transaction).await?;
    let done =
        sqlx::query!("DELETE FROM roles WHERE role_id = $1 -- delete_role", role_id).execute(transaction).await?;
    Ok(done.rows_affected() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{until_a_session_waits, with_clients};
    use tenure_domain::scopes::ANONYMOUS;

    fn role(role_id: &str, scopes: &[&str]) -> NewRole {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        NewRole { role_id: role_id.to_owned(), scopes, description: "d".to_owned() }
    }

    #[tokio::test]
    async fn concurrent_update_and_delete_do_not_deadlock() {
        with_clients(|pool| async move {
            create(&pool, &role("a", &[])).await.unwrap();
            let mut other = pool.begin().await.unwrap();
            lock_all(&mut other).await.unwrap();
            let changing = async {
                until_a_session_waits(&pool).await;
                let changed = update(&mut *other, &role("a", &["x"])).await;
                other.commit().await.unwrap();
                changed
            };
            let deleting = async {
                let mut transaction = pool.begin().await.unwrap();
                let deleted = delete(&mut transaction, "a").await;
                transaction.commit().await.unwrap();
                deleted
            };
            let (deleted, changed) = tokio::join!(deleting, changing);
            assert!(deleted.unwrap() && changed.unwrap().is_some());
        })
        .await;
    }

    #[tokio::test]
    async fn roles_are_listed_in_pages_by_bytes() {
        with_clients(|pool| async move {
            for id in ["b", "B", "a*", "a"] {
                create(&pool, &role(id, &[])).await.unwrap();
            }
            let ids = |roles: Vec<RoleInfo>| roles.into_iter().map(|role| role.role_id).collect::<Vec<_>>();
            assert_eq!(ids(list(&pool, None, None).await.unwrap()), ["B", "a", "a*", "anonymous", "b"]);
            assert_eq!(ids(list(&pool, Some("B"), Some(3)).await.unwrap()), ["a", "a*", "anonymous"]);
            assert_eq!(ids(list(&pool, Some("b"), Some(2)).await.unwrap()), Vec::<String>::new());
        })
        .await;
    }

    #[tokio::test]
    async fn role_change_raises_generation() {
        with_clients(|pool| async move {
            assert!(delete(&mut pool.acquire().await.unwrap(), "anonymous").await.unwrap());
            let generation =
                async || facts::get_generations(&mut pool.acquire().await.unwrap()).await.unwrap().of[FACT];
            let mut last = generation().await;
            assert_eq!(load_all(&pool).await.unwrap(), vec![]);
            create(&pool, &role("a", &["x"])).await.unwrap();
            for change in ["UPDATE roles SET scopes = '{y}'", "DELETE FROM roles", "TRUNCATE roles"] {
                let now = generation().await;
                assert_ne!(now, last, "before {change}");
                let all = load_all(&pool).await.unwrap();
                assert_eq!(all.len(), usize::from(change != "TRUNCATE roles"), "before {change}");
                last = now;
                sqlx::raw_sql(change).execute(&pool).await.unwrap();
            }
            assert_ne!(generation().await, last);
        })
        .await;
    }

    #[tokio::test]
    async fn anonymous_role_exists_from_start() {
        with_clients(|pool| async move {
            let anonymous = find(&pool, "anonymous").await.unwrap().unwrap();
            assert_eq!(anonymous.scopes, ANONYMOUS.map(str::to_owned));
        })
        .await;
    }

    #[tokio::test]
    async fn database_rejects_same_ids_as_code() {
        with_clients(|pool| async move {
            for (id, good) in
                [("a b", true), ("*", true), ("", false), ("a**", false), ("\u{e9}", false), ("a\n", false)]
            {
                assert_eq!(tenure_domain::roles::valid_role_id(id), good, "{id:?}");
                assert_eq!(create(&pool, &role(id, &[])).await.is_ok(), good, "{id:?}");
            }
            assert!(create(&pool, &role(&"x".repeat(1000), &[])).await.is_ok());
            assert!(create(&pool, &role(&"x".repeat(1001), &[])).await.is_err());
        })
        .await;
    }
}
