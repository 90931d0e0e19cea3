//! Changes of roles, one at a time under a lock: a cycle depends on all roles. The slow checks run
//! before the lock, and under it only if roles have changed since.

use serde_json::json;
use sqlx::{Connection, PgConnection, PgPool};

use super::OpError;
use super::actor::{Actor, Recorded};
use tenure_domain::audit::{self, Account, Action, Entry};
use tenure_domain::roles::{
    ASSUME, EXPANSION_MAX, GIVEN_MAX, OWN_SCOPES_ROOM, Resolver, RoleScopes, check_description, check_parameters,
    check_scopes, keeps_clients_out, valid_role_id,
};
use tenure_store::roles::{self, NewRole, RoleInfo};

/// Checks a role by itself. An error is a sentence for the caller.
pub fn check(role: &NewRole) -> Result<(), String> {
    if !valid_role_id(&role.role_id) {
        return Err("a role id is up to 1000 characters of printable ASCII, and does not end in two stars".to_owned());
    }
    check_scopes(&role.scopes)?;
    check_parameters(&role.scopes)?;
    check_description(&role.description)
}

/// Creates a role. A repeat with the same definition returns the existing role.
pub async fn create(pool: &PgPool, actor: &Actor, role: &NewRole) -> Result<Result<RoleInfo, OpError>, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let generation = roles::get_generation(&mut conn).await?;
    if let Some(answer) = answer_without_creating(&mut conn, role).await? {
        return Ok(answer);
    }
    let mut transaction = conn.begin().await?;
    let locked = roles::lock_all(&mut transaction).await?;
    if locked != generation
        && let Some(answer) = answer_without_creating(&mut transaction, role).await?
    {
        return Ok(answer);
    }
    let created = roles::create(&mut *transaction, role).await?;
    let entry = Entry::new(Action::CreateRole, &role.role_id, audit::created(account(&created)));
    let recorded = actor.record(&mut transaction, entry).await?;
    transaction.commit().await?;
    recorded.log();
    Ok(Ok(created))
}

/// Returns the answer if the role already exists or must not be created.
async fn answer_without_creating(
    conn: &mut PgConnection,
    role: &NewRole,
) -> Result<Option<Result<RoleInfo, OpError>>, sqlx::Error> {
    if let Some(existing) = roles::find(&mut *conn, &role.role_id).await? {
        let same = existing.scopes == role.scopes && existing.description == role.description;
        return Ok(Some(if same { Ok(existing) } else { Err(exists(&role.role_id)) }));
    }
    Ok(check_among_others(conn, role).await?.err().map(Err))
}

/// Changes a role. Given `seen`, fails if its scopes are different.
pub async fn update(
    pool: &PgPool,
    actor: &Actor,
    role: &NewRole,
    seen: Option<&[String]>,
) -> Result<Result<RoleInfo, OpError>, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let generation = roles::get_generation(&mut conn).await?;
    if let Err(unfit) = check_update(&mut conn, role, seen).await? {
        return Ok(Err(unfit));
    }
    let mut transaction = conn.begin().await?;
    let locked = roles::lock_all(&mut transaction).await?;
    if locked != generation
        && let Err(unfit) = check_update(&mut transaction, role, seen).await?
    {
        return Ok(Err(unfit));
    }
    let before = roles::find(&mut *transaction, &role.role_id).await?;
    let changed = roles::update(&mut *transaction, role).await?;
    let both = before.as_ref().zip(changed.as_ref());
    let mut recorded = None;
    if let Some(detail) = both.and_then(|(before, after)| audit::changed(account(before), account(after))) {
        let entry = Entry::new(Action::UpdateRole, &role.role_id, detail);
        recorded = Some(actor.record(&mut transaction, entry).await?);
    }
    transaction.commit().await?;
    recorded.into_iter().for_each(Recorded::log);
    Ok(changed.ok_or_else(|| missing(&role.role_id)))
}

/// Deletes a role. False if it does not exist.
pub async fn delete(pool: &PgPool, actor: &Actor, role_id: &str) -> Result<bool, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    if !roles::delete(&mut transaction, role_id).await? {
        return Ok(false);
    }
    let recorded = actor.record(&mut transaction, Entry::new(Action::DeleteRole, role_id, json!({}))).await?;
    transaction.commit().await?;
    recorded.log();
    Ok(true)
}

fn account(role: &RoleInfo) -> Account<'_> {
    let RoleInfo { scopes, description, .. } = role;
    Account { scopes, description, expires: None, delete_on_expiration: false }
}

async fn check_update(
    conn: &mut PgConnection,
    role: &NewRole,
    seen: Option<&[String]>,
) -> Result<Result<(), OpError>, sqlx::Error> {
    let Some(existing) = roles::find(&mut *conn, &role.role_id).await? else {
        return Ok(Err(missing(&role.role_id)));
    };
    if seen.is_some_and(|seen| seen != existing.scopes) {
        let message =
            format!("role {:?} was changed by another request at the same time; read it and try again", role.role_id);
        return Ok(Err(OpError::Conflict(message)));
    }
    check_among_others(conn, role).await
}

#[must_use]
pub fn missing(role_id: &str) -> OpError {
    OpError::NotFound(format!("there is no role {role_id:?}"))
}

fn exists(role_id: &str) -> OpError {
    OpError::Conflict(format!("role {role_id:?} already exists with another definition; update it instead"))
}

async fn check_among_others(conn: &mut PgConnection, role: &NewRole) -> Result<Result<(), OpError>, sqlx::Error> {
    let before = roles::load_all(conn).await?;
    let mut all = before.clone();
    all.retain(|other| other.role_id != role.role_id);
    all.push(RoleScopes { role_id: role.role_id.clone(), scopes: role.scopes.clone() });
    let after = Resolver::new(all);
    if let Some(circle) = after.find_cycle(&role.role_id) {
        let way = circle.join("\" -> \"");
        return Ok(Err(OpError::Input(format!(
            "roles must not assume each other in a cycle, and this role would: \"{way}\""
        ))));
    }
    if keeps_clients_out(&Resolver::new(before), &after) {
        return Ok(Err(OpError::Input(format!(
            "with this role, the scopes of all roles would be too large for clients that assume them by \
             \"{ASSUME}*\": over {} bytes, or about {GIVEN_MAX} where roles repeat scopes; make this role or others \
             smaller",
            EXPANSION_MAX - OWN_SCOPES_ROOM
        ))));
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::OpError::{Conflict, Input, NotFound};
    use super::*;
    use crate::testing::ANN;
    use tenure_store::testing::{until_sessions_wait, with_clients};

    fn role(role_id: &str, scopes: &[&str]) -> NewRole {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        NewRole { role_id: role_id.to_owned(), scopes, description: String::new() }
    }

    #[tokio::test]
    async fn concurrent_roles_cannot_form_cycle() {
        with_clients(|pool| async move {
            for round in 0..10 {
                let (a, b) = (format!("a{round}"), format!("b{round}"));
                let (to_a, to_b) = (format!("assume:{a}"), format!("assume:{b}"));
                let (one, other) = (role(&a, &[&to_b]), role(&b, &[&to_a]));
                let (one, other) = tokio::join!(create(&pool, &ANN, &one), create(&pool, &ANN, &other));
                let (one, other) = (one.unwrap(), other.unwrap());
                assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
                let refused = one.err().or(other.err()).unwrap();
                assert!(matches!(refused, OpError::Input(_)), "{refused}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn requests_without_change_take_no_lock() {
        with_clients(|pool| async move {
            create(&pool, &ANN, &role("there", &["a"])).await.unwrap().unwrap();
            let mut other = pool.begin().await.unwrap();
            roles::lock_all(&mut other).await.unwrap();
            let all = async {
                create(&pool, &ANN, &role("there", &["a"])).await.unwrap().unwrap();
                let seen = ["b".to_owned()];
                [
                    create(&pool, &ANN, &role("there", &["b"])).await,
                    create(&pool, &ANN, &role("circle", &["assume:circle"])).await,
                    update(&pool, &ANN, &role("there", &["assume:there"]), None).await,
                    update(&pool, &ANN, &role("there", &["c"]), Some(&seen)).await,
                    update(&pool, &ANN, &role("missing", &[]), None).await,
                ]
            };
            let refused = tokio::time::timeout(Duration::from_secs(10), all).await.expect("requests take the lock");
            let refused = refused.map(|answer| answer.unwrap().unwrap_err());
            let expected = matches!(&refused, [Conflict(_), Input(_), Input(_), Conflict(_), NotFound(_)]);
            assert!(expected, "{refused:?}");
            other.rollback().await.unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn checks_repeat_under_lock_after_concurrent_change() {
        with_clients(|pool| async move {
            create(&pool, &ANN, &role("c", &[])).await.unwrap().unwrap();
            let mut other = pool.begin().await.unwrap();
            roles::lock_all(&mut other).await.unwrap();
            let (one, another) = (role("a", &["assume:b"]), role("c", &["assume:b"]));
            let seen: [String; 0] = [];
            let both = async { tokio::join!(create(&pool, &ANN, &one), update(&pool, &ANN, &another, Some(&seen))) };
            let meanwhile = async {
                until_sessions_wait(&pool, 2).await;
                roles::create(&mut *other, &role("b", &["assume:a"])).await.unwrap();
                roles::update(&mut *other, &role("c", &["x"])).await.unwrap();
                other.commit().await.unwrap();
            };
            let ((created, updated), ()) = tokio::join!(both, meanwhile);
            let refused = (created.unwrap().unwrap_err(), updated.unwrap().unwrap_err());
            assert!(matches!(refused, (Input(_), Conflict(_))), "{refused:?}");
        })
        .await;
    }

    #[tokio::test]
    async fn role_exceeding_expansion_limit_is_refused() {
        with_clients(|pool| async move {
            let large = |role_id: &str, kibibytes: usize| {
                let scope = |n: usize| format!("{role_id}:{n:04}:{}", "x".repeat(1_000));
                NewRole { scopes: (0..kibibytes).map(scope).collect(), ..role(role_id, &[]) }
            };
            create(&pool, &ANN, &large("one", 2_000)).await.unwrap().unwrap();
            // It would fit, but not for a client with own scopes.
            let refused = create(&pool, &ANN, &large("two", 1_500)).await.unwrap().unwrap_err();
            assert!(matches!(&refused, OpError::Input(message) if message.contains("3145728")), "{refused}");
            create(&pool, &ANN, &large("two", 500)).await.unwrap().unwrap();
            let refused = update(&pool, &ANN, &large("two", 2_000), None).await.unwrap().unwrap_err();
            assert!(matches!(refused, OpError::Input(_)), "{refused}");
            // Too large already, as before the check existed: clients still let in must not be kept
            // out now.
            roles::update(&pool, &large("two", 1_500)).await.unwrap().unwrap();
            let refused = update(&pool, &ANN, &large("two", 2_500), None).await.unwrap().unwrap_err();
            assert!(matches!(refused, OpError::Input(_)), "{refused}");
            roles::update(&pool, &large("two", 2_500)).await.unwrap().unwrap();
            update(&pool, &ANN, &large("two", 2_400), None).await.unwrap().unwrap();
            create(&pool, &ANN, &role("three", &["a"])).await.unwrap().unwrap();
        })
        .await;
    }
}
