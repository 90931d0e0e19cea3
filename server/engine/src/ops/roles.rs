//! Changes of roles. They take turns, because whether a role closes a circle depends on all the others.

use sqlx::{Connection, PgConnection, PgPool};

use super::OpError;
use tenure_domain::roles::{
    ASSUME, EXPANSION_MAX, GIVEN_MAX, Resolver, RoleScopes, check_description, check_parameters, check_scopes,
    valid_role_id,
};
use tenure_store::roles::{self, NewRole, RoleInfo};

/// What is left of the largest expansion for a client's own scopes, in bytes, when it assumes all roles.
const OWN_SCOPES_ROOM: usize = 1 << 20;

/// Checks a role by itself.
///
/// # Errors
/// A sentence for the caller.
pub fn check(role: &NewRole) -> Result<(), String> {
    if !valid_role_id(&role.role_id) {
        return Err("a role id is up to 1000 characters of printable ASCII, and does not end in two stars".to_owned());
    }
    check_scopes(&role.scopes)?;
    check_parameters(&role.scopes)?;
    check_description(&role.description)
}

/// Creates a role. A repeat with the same definition answers the existing one.
pub async fn create(pool: &PgPool, role: &NewRole) -> Result<Result<RoleInfo, OpError>, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    roles::lock_all(&mut transaction).await?;
    if let Some(existing) = roles::find(&mut *transaction, &role.role_id).await? {
        let same = existing.scopes == role.scopes && existing.description == role.description;
        return Ok(if same { Ok(existing) } else { Err(exists(&role.role_id)) });
    }
    if let Err(unfit) = check_among_others(&mut transaction, role).await? {
        return Ok(Err(unfit));
    }
    let created = roles::create(&mut *transaction, role).await?;
    transaction.commit().await?;
    Ok(Ok(created))
}

/// Changes a role, if it still has the scopes that the caller saw; without these, whatever it has.
pub async fn update(
    pool: &PgPool,
    role: &NewRole,
    seen: Option<&[String]>,
) -> Result<Result<RoleInfo, OpError>, sqlx::Error> {
    let mut conn = pool.acquire().await?;
    let mut transaction = conn.begin().await?;
    roles::lock_all(&mut transaction).await?;
    let Some(existing) = roles::find(&mut *transaction, &role.role_id).await? else {
        return Ok(Err(missing(&role.role_id)));
    };
    if seen.is_some_and(|seen| seen != existing.scopes) {
        let message = format!("the role {:?} was changed at the same time; look at it and try again", role.role_id);
        return Ok(Err(OpError::Conflict(message)));
    }
    if let Err(unfit) = check_among_others(&mut transaction, role).await? {
        return Ok(Err(unfit));
    }
    let changed = roles::update(&mut *transaction, role).await?;
    transaction.commit().await?;
    Ok(changed.ok_or_else(|| missing(&role.role_id)))
}

/// The error for a role that does not exist.
#[must_use]
pub fn missing(role_id: &str) -> OpError {
    OpError::NotFound(format!("there is no role {role_id:?}"))
}

fn exists(role_id: &str) -> OpError {
    OpError::Conflict(format!("there is a role {role_id:?} already, with another definition; update it instead"))
}

/// Checks what a role does together with all the others.
async fn check_among_others(conn: &mut PgConnection, role: &NewRole) -> Result<Result<(), OpError>, sqlx::Error> {
    let before = roles::load_all(conn).await?;
    let mut all = before.clone();
    all.retain(|other| other.role_id != role.role_id);
    all.push(RoleScopes { role_id: role.role_id.clone(), scopes: role.scopes.clone() });
    let after = Resolver::new(all);
    if let Some(circle) = after.find_cycle(&role.role_id) {
        let way = circle.join("\" -> \"");
        return Ok(Err(OpError::Input(format!(
            "roles must not assume each other in a circle, and this would: \"{way}\""
        ))));
    }
    // Who may make some roles must not keep out clients that assume all of them: a client whose scopes expand to too much is refused.
    // Where that is so already, a role may change, or none could be made smaller.
    if all_can_be_assumed(&after, OWN_SCOPES_ROOM) {
        return Ok(Ok(()));
    }
    let before = Resolver::new(before);
    if all_can_be_assumed(&before, OWN_SCOPES_ROOM)
        || (!all_can_be_assumed(&after, 0) && all_can_be_assumed(&before, 0))
    {
        return Ok(Err(OpError::Input(format!(
            "with it, the scopes of all roles together would be too large for clients that assume them by \"{ASSUME}*\": \
             over {} bytes, or about {GIVEN_MAX} where roles give the same again; make this role or others smaller",
            EXPANSION_MAX - OWN_SCOPES_ROOM
        ))));
    }
    Ok(Ok(()))
}

/// Whether a client that assumes all roles is let in, if its own scopes take so many bytes besides.
fn all_can_be_assumed(roles: &Resolver, own: usize) -> bool {
    roles.resolve([format!("{ASSUME}*"), "x".repeat(own)]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_store::testing::with_clients;

    fn role(role_id: &str, scopes: &[&str]) -> NewRole {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        NewRole { role_id: role_id.to_owned(), scopes, description: String::new() }
    }

    #[tokio::test]
    async fn of_two_roles_that_would_close_a_circle_together_one_is_refused() {
        with_clients(|pool| async move {
            for round in 0..10 {
                let (a, b) = (format!("a{round}"), format!("b{round}"));
                let (to_a, to_b) = (format!("assume:{a}"), format!("assume:{b}"));
                let (one, other) = (role(&a, &[&to_b]), role(&b, &[&to_a]));
                let (one, other) = tokio::join!(create(&pool, &one), create(&pool, &other));
                let (one, other) = (one.unwrap(), other.unwrap());
                assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
                let refused = one.err().or(other.err()).unwrap();
                assert!(matches!(refused, OpError::Input(_)), "{refused}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_role_that_keeps_out_who_assumes_all_is_refused_and_a_smaller_one_is_not() {
        with_clients(|pool| async move {
            let large = |role_id: &str, kibibytes: usize| {
                let scope = |n: usize| format!("{role_id}:{n:04}:{}", "x".repeat(1_000));
                NewRole { scopes: (0..kibibytes).map(scope).collect(), ..role(role_id, &[]) }
            };
            create(&pool, &large("one", 2_000)).await.unwrap().unwrap();
            // It would fit, but for a client with scopes of its own.
            let refused = create(&pool, &large("two", 1_500)).await.unwrap().unwrap_err();
            assert!(matches!(&refused, OpError::Input(message) if message.contains("3145728")), "{refused}");
            create(&pool, &large("two", 500)).await.unwrap().unwrap();
            let refused = update(&pool, &large("two", 2_000), None).await.unwrap().unwrap_err();
            assert!(matches!(refused, OpError::Input(_)), "{refused}");
            // They are too large already, as before this was checked: those who are still let in are not kept out now.
            roles::update(&pool, &large("two", 1_500)).await.unwrap().unwrap();
            let refused = update(&pool, &large("two", 2_500), None).await.unwrap().unwrap_err();
            assert!(matches!(refused, OpError::Input(_)), "{refused}");
            roles::update(&pool, &large("two", 2_500)).await.unwrap().unwrap();
            update(&pool, &large("two", 2_400), None).await.unwrap().unwrap();
            create(&pool, &role("three", &["a"])).await.unwrap().unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn an_update_of_scopes_that_are_no_longer_there_is_a_conflict_and_changes_nothing() {
        with_clients(|pool| async move {
            create(&pool, &role("r", &["a"])).await.unwrap().unwrap();
            let seen = ["a".to_owned()];
            update(&pool, &role("r", &["b"]), Some(&seen)).await.unwrap().unwrap();
            let late = update(&pool, &role("r", &["c"]), Some(&seen)).await.unwrap().unwrap_err();
            assert!(matches!(late, OpError::Conflict(_)), "{late}");
            assert_eq!(roles::find(&pool, "r").await.unwrap().unwrap().scopes, ["b"]);
        })
        .await;
    }
}
