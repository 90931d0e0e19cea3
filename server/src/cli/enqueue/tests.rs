//! Arguments, output and refusals of the commands.

use clap::Parser;
use clap::error::ErrorKind;

use super::*;
use tenure_store::clients::NewClient;
use tenure_store::secrets::{SecretKeys, new_access_token};
use tenure_store::testing::TestDatabase;

#[derive(Debug, Parser)]
struct Tenure {
    #[command(flatten)]
    enqueue: EnqueueArgs,
}

fn parse(words: &[&str]) -> Result<EnqueueArgs, clap::Error> {
    Tenure::try_parse_from(["enqueue"].iter().chain(words)).map(|tenure| tenure.enqueue)
}

async fn with_database<F: Future<Output = ()>>(test: impl FnOnce(PgPool) -> F) {
    let database = TestDatabase::create().await;
    test(database.pool().clone()).await;
    database.finish().await;
}

async fn tenure(pool: &PgPool, words: &[&str]) -> Result<String, CommandError> {
    execute(pool, parse(words).unwrap()).await
}

async fn create_client(pool: &PgPool, client_id: &str) {
    let keys = SecretKeys::parse("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
    let client = NewClient {
        client_id: client_id.to_owned(),
        scopes: vec![],
        description: String::new(),
        expires: None,
        delete_on_expiration: false,
    };
    assert!(clients::create(pool, &keys, &client, &new_access_token()).await.unwrap());
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let kind = |words: &[&str]| parse(words).unwrap_err().kind();
    assert_eq!(kind(&["allow", "app"]), ErrorKind::MissingRequiredArgument);
    assert_eq!(kind(&["retry", "no-id"]), ErrorKind::ValueValidation);
    assert_eq!(kind(&["permit", "app"]), ErrorKind::InvalidSubcommand);
}

#[tokio::test]
async fn role_is_allowed_listed_and_denied() {
    with_database(|pool| async move {
        create_client(&pool, "shop").await;
        // The role of the test itself: no other exists in every cluster.
        let role: String = sqlx::query_scalar("SELECT current_user::text").fetch_one(&pool).await.unwrap();
        assert_eq!(tenure(&pool, &["list"]).await.unwrap().lines().count(), 1);
        let allowed = tenure(&pool, &["allow", &role, "--client", "shop"]).await.unwrap();
        assert!(allowed.contains("public.tenure_enqueue('acme/mail'"), "{allowed}");
        let listed = tenure(&pool, &["list", "--json"]).await.unwrap();
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed, json!([{"role": role, "clientId": "shop"}]));
        let denied = tenure(&pool, &["deny", &role]).await.unwrap();
        assert_eq!(denied, format!("Role {role} may no longer enqueue tasks."));
        assert!(matches!(tenure(&pool, &["deny", &role]).await, Err(CommandError::NotAllowed(_))));
        assert_eq!(tenure(&pool, &["list", "--json"]).await.unwrap(), "[]");
    })
    .await;
}

#[tokio::test]
async fn missing_client_and_missing_role_are_named() {
    with_database(|pool| async move {
        let missing = tenure(&pool, &["allow", "nobody-here", "--client", "shop"]).await.unwrap_err();
        assert!(missing.to_string().contains("client \"shop\" does not exist"), "{missing}");
        create_client(&pool, "shop").await;
        let missing = tenure(&pool, &["allow", "nobody-here", "--client", "shop"]).await.unwrap_err();
        assert!(missing.to_string().contains("no role \"nobody-here\""), "{missing}");
        assert_eq!(tenure(&pool, &["list", "--json"]).await.unwrap(), "[]");
    })
    .await;
}

#[tokio::test]
async fn refused_task_is_listed_and_retried() {
    with_database(|pool| async move {
        let task = "fN1SbArXTPSVFNUvaOlinQ";
        assert!(matches!(tenure(&pool, &["retry", task]).await, Err(CommandError::NotRefused(_))));
        let insert =
            "INSERT INTO enqueued (task, queue, body, role, error) VALUES ($1, 'acme/mail', '{}', 'app', 'no\nscope')";
        sqlx::query(insert).bind(task.parse::<TaskId>().unwrap().uuid()).execute(&pool).await.unwrap();
        let refused = tenure(&pool, &["refused"]).await.unwrap();
        assert!(refused.contains(task) && refused.contains("no\u{fffd}scope"), "{refused}");
        assert_eq!(tenure(&pool, &["retry", task]).await.unwrap(), format!("Task {task} is tried again."));
        assert_eq!(tenure(&pool, &["refused", "--json"]).await.unwrap(), "[]");
        let due = "SELECT try_at <= tenure_now() FROM enqueued WHERE error IS NULL";
        assert!(sqlx::query_scalar::<_, bool>(due).fetch_one(&pool).await.unwrap());
    })
    .await;
}
