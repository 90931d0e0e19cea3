//! Arguments, output and refusals of the commands.

use clap::Parser;
use clap::error::ErrorKind;

use super::*;
use tenure_store::testing::with_clients;

#[derive(Debug, Parser)]
struct Tenure {
    #[command(flatten)]
    role: RoleArgs,
}

fn parse(words: &[&str]) -> Result<RoleArgs, clap::Error> {
    Tenure::try_parse_from(["role"].iter().chain(words)).map(|tenure| tenure.role)
}

async fn tenure(pool: &PgPool, words: &[&str]) -> Result<String, CommandError> {
    execute(pool, parse(words).unwrap()).await
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let kind = |words: &[&str]| parse(words).unwrap_err().kind();
    assert_eq!(kind(&["create", "a**"]), ErrorKind::ValueValidation);
    assert_eq!(kind(&["create", "a", "--scope", "a**"]), ErrorKind::ValueValidation);
    assert_eq!(kind(&["update", "a", "--scope", "a", "--no-scopes"]), ErrorKind::ArgumentConflict);
    assert_eq!(kind(&["create"]), ErrorKind::MissingRequiredArgument);
    assert_eq!(kind(&["rename", "a"]), ErrorKind::InvalidSubcommand);
    assert_eq!(parse(&["create"]).unwrap_err().exit_code(), 2);
}

#[tokio::test]
async fn role_is_created_shown_changed_and_deleted() {
    with_clients(|pool| async move {
        // The initial role.
        assert_eq!(tenure(&pool, &["delete", "anonymous"]).await.unwrap(), "Deleted role anonymous.");
        let create = ["create", "team:*", "--scope", "queue:<..>", "--scope", "a", "--description", "d"];
        let made = tenure(&pool, &create).await.unwrap();
        assert!(made.contains("role           team:*") && made.contains("queue:<..>"), "{made}");
        assert_eq!(tenure(&pool, &create).await.unwrap(), made, "a repeat");
        assert_eq!(tenure(&pool, &["list"]).await.unwrap(), "ROLE    SCOPES\nteam:*  queue:<..> a\n");
        let json = async |words: &[&str]| {
            serde_json::from_str::<serde_json::Value>(&tenure(&pool, words).await.unwrap()).unwrap()
        };
        let shown = json(&["show", "team:*", "--json"]).await;
        assert_eq!(json(&["list", "--json"]).await, json!([shown]));
        assert_eq!((&shown["roleId"], &shown["scopes"]), (&json!("team:*"), &json!(["queue:<..>", "a"])));
        let changed = json(&["update", "team:*", "--scope", "b", "--json"]).await;
        assert_eq!((&changed["scopes"], &changed["description"]), (&json!(["b"]), &json!("d")));
        let changed = json(&["update", "team:*", "--description", "e", "--json"]).await;
        assert_eq!((&changed["scopes"], &changed["description"]), (&json!(["b"]), &json!("e")));
        assert_eq!(json(&["update", "team:*", "--no-scopes", "--json"]).await["scopes"], json!([]));
        assert_eq!(tenure(&pool, &["delete", "team:*"]).await.unwrap(), "Deleted role team:*.");
    })
    .await;
}

#[tokio::test]
async fn description_cannot_control_terminal() {
    with_clients(|pool| async move {
        let made = tenure(&pool, &["create", "a", "--description", "d\u{1b}[2J\n\u{9b}e"]).await.unwrap();
        assert!(made.contains("description    d\u{fffd}[2J\u{fffd}\u{fffd}e\n"), "{made:?}");
    })
    .await;
}

#[tokio::test]
async fn invalid_role_is_refused() {
    with_clients(|pool| async move {
        for command in ["show", "update", "delete"] {
            let error = tenure(&pool, &[command, "missing"]).await.unwrap_err();
            assert!(matches!(error, CommandError::Missing(_)), "{command}: {error}");
        }
        tenure(&pool, &["create", "a", "--scope", "assume:b"]).await.unwrap();
        for (words, say) in [
            (&["create", "a"][..], "already"),
            (&["create", "b", "--scope", "assume:a"], "cycle"),
            (&["update", "a", "--scope", "assume:a"], "cycle"),
            (&["create", "c*", "--scope", "x*<..>"], "<..>"),
        ] {
            let error = tenure(&pool, words).await.unwrap_err();
            assert!(error.to_string().contains(say), "{words:?}: {error}");
        }
        assert!(tenure(&pool, &["show", "b"]).await.is_err());
    })
    .await;
}
