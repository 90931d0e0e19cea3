//! Arguments, output and refusals of the commands.

use clap::Parser;
use clap::error::ErrorKind;

use super::*;
use tenure_store::testing::with_clients;

#[derive(Debug, Parser)]
struct Tenure {
    #[command(flatten)]
    client: ClientArgs,
}

fn parse(words: &[&str]) -> Result<ClientArgs, clap::Error> {
    Tenure::try_parse_from(["client"].iter().chain(words)).map(|tenure| tenure.client)
}

fn keys() -> SecretKeys {
    SecretKeys::parse("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap()
}

async fn tenure(pool: &PgPool, words: &[&str]) -> Result<String, CommandError> {
    execute(pool, Some(&keys()), "http://localhost:8080", parse(words).unwrap()).await
}

fn token_in(output: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(output).unwrap();
    assert_eq!(json["rootUrl"], "http://localhost:8080");
    assert_eq!(json["clientId"], "ci");
    json["accessToken"].as_str().unwrap().to_owned()
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let kind = |words: &[&str]| parse(words).unwrap_err().kind();
    assert_eq!(kind(&["create", "a b"]), ErrorKind::ValueValidation);
    assert_eq!(kind(&["create", "a", "--scope", "a**"]), ErrorKind::ValueValidation);
    assert_eq!(kind(&["create", "a", "--expires", "soon"]), ErrorKind::ValueValidation);
    assert_eq!(kind(&["create", "a", "--submit", "acme*"]), ErrorKind::ValueValidation);
    assert_eq!(kind(&["create", "a", "--work", "web/send_email"]), ErrorKind::ValueValidation);
    assert_eq!(kind(&["create"]), ErrorKind::MissingRequiredArgument);
    assert_eq!(kind(&["rename", "a"]), ErrorKind::InvalidSubcommand);
    assert_eq!(parse(&["create", "a", "--expires", "soon"]).unwrap_err().exit_code(), 2);
}

#[tokio::test]
async fn create_prints_credentials_of_stored_client() {
    with_clients(|pool| async move {
        let create = ["create", "ci", "--scope", "a", "--scope", "b*", "--expires", "2027-01-31T12:00:00Z"];
        let token = token_in(&tenure(&pool, &create).await.unwrap());
        assert_eq!(token.len(), 43);
        let account = clients::find_account(&pool, &keys(), "ci").await.unwrap().unwrap();
        assert_eq!(account.access_token.expose(), token);
        assert_eq!(account.scopes, ["a", "b*"]);
        let again = tenure(&pool, &create).await.unwrap_err();
        assert!(matches!(again, CommandError::Exists(_)), "{again}");
    })
    .await;
}

#[tokio::test]
async fn grants_are_added_to_scopes_and_described() {
    with_clients(|pool| async move {
        let create = ["create", "ci", "--scope", "a", "--submit", "acme/*", "--work", "acme/*", "--work", "mail"];
        tenure(&pool, &create).await.unwrap();
        let account = clients::find_account(&pool, &keys(), "ci").await.unwrap().unwrap();
        let has = |scope: &str| account.scopes.iter().filter(|held| *held == scope).count();
        assert_eq!([has("a"), has("queue:create-task:highest:acme/*"), has("queue:claim-work:acme/*")], [1; 3]);
        assert_eq!((has("queue:claim-work:default/mail"), has("queue:worker-id:*")), (1, 1));
    })
    .await;
    let args = ["create", "ci", "--scope", "a", "--submit", "acme/*", "--work", "mail"];
    let ClientCommand::Create(args) = parse(&args).unwrap().command else { panic!("it creates") };
    let grants = args.grants();
    assert!(grants[0].starts_with("client ci may create tasks") && grants[0].contains("  tenure:cancel-task:acme/*"));
    assert!(grants[1].starts_with("client ci may claim") && grants[1].contains("\n  queue:claim-work:default/mail\n"));
    assert_eq!(grants.len(), 2);
}

#[tokio::test]
async fn reset_token_is_printed_like_new_one() {
    with_clients(|pool| async move {
        let first = token_in(&tenure(&pool, &["create", "ci"]).await.unwrap());
        let second = token_in(&tenure(&pool, &["reset-token", "ci"]).await.unwrap());
        assert_ne!(first, second);
        let account = clients::find_account(&pool, &keys(), "ci").await.unwrap().unwrap();
        assert_eq!(account.access_token.expose(), second);
    })
    .await;
}

#[tokio::test]
async fn list_prints_table_or_json_without_tokens() {
    with_clients(|pool| async move {
        let token = token_in(&tenure(&pool, &["create", "ci", "--scope", "a", "--description", "d"]).await.unwrap());
        let list = tenure(&pool, &["list"]).await.unwrap();
        assert_eq!(list.lines().count(), 2);
        assert!(list.contains("ci      enabled  never"), "{list}");
        let json: serde_json::Value = serde_json::from_str(&tenure(&pool, &["list", "--json"]).await.unwrap()).unwrap();
        assert_eq!(json[0]["clientId"], "ci");
        let show = tenure(&pool, &["show", "ci"]).await.unwrap();
        assert!(show.contains("description    d"), "{show}");
        let one: serde_json::Value =
            serde_json::from_str(&tenure(&pool, &["show", "ci", "--json"]).await.unwrap()).unwrap();
        assert_eq!(one, json[0]);
        for output in [list, json.to_string(), show] {
            assert!(!output.contains(&token));
        }
    })
    .await;
}

#[tokio::test]
async fn description_cannot_control_terminal() {
    with_clients(|pool| async move {
        tenure(&pool, &["create", "ci", "--description", "d\u{1b}[2J\n\u{9b}e"]).await.unwrap();
        let show = tenure(&pool, &["show", "ci"]).await.unwrap();
        assert!(show.contains("description    d\u{fffd}[2J\u{fffd}\u{fffd}e\n"), "{show:?}");
        let json = tenure(&pool, &["show", "ci", "--json"]).await.unwrap();
        assert!(json.contains(r#""d\u001b[2J\n\u009be""#), "{json:?}");
    })
    .await;
}

#[tokio::test]
async fn client_is_changed_disabled_and_enabled() {
    with_clients(|pool| async move {
        tenure(&pool, &["create", "ci", "--scope", "a", "--expires", "2027-01-31T12:00:00Z"]).await.unwrap();
        let json = async |words: &[&str]| {
            let words = [words, &["--json"]].concat();
            serde_json::from_str::<serde_json::Value>(&tenure(&pool, &words).await.unwrap()).unwrap()
        };
        let changed = json(&["update", "ci", "--description", "d"]).await;
        assert_eq!((&changed["description"], &changed["scopes"]), (&json!("d"), &json!(["a"])));
        assert_eq!(changed["expires"], "2027-01-31T12:00:00.000Z");
        let changed = json(&["update", "ci", "--scope", "b", "--scope", "c", "--expires", "never"]).await;
        assert_eq!((&changed["scopes"], &changed["expires"]), (&json!(["b", "c"]), &json!(null)));
        assert_eq!(changed["description"], "d");
        assert_eq!(json(&["update", "ci", "--no-scopes"]).await["scopes"], json!([]));
        assert_eq!(json(&["disable", "ci"]).await["disabled"], true);
        assert!(tenure(&pool, &["list"]).await.unwrap().contains("ci      disabled"));
        assert_eq!(json(&["enable", "ci"]).await["disabled"], false);
        let long = "x".repeat(10_241);
        let error = tenure(&pool, &["update", "ci", "--description", &long]).await.unwrap_err();
        assert!(matches!(error, CommandError::Invalid(_)), "{error}");
    })
    .await;
}

#[tokio::test]
async fn every_command_refuses_missing_client() {
    with_clients(|pool| async move {
        tenure(&pool, &["create", "ci"]).await.unwrap();
        assert_eq!(tenure(&pool, &["delete", "ci"]).await.unwrap(), "Deleted client ci.");
        for command in ["show", "delete", "reset-token", "update", "disable", "enable"] {
            let error = tenure(&pool, &[command, "ci"]).await.unwrap_err();
            assert!(matches!(error, CommandError::Missing(_)), "{command}: {error}");
        }
    })
    .await;
}
