//! Runs on a database with the whole schema.

use super::*;
use tenure_store::clients::NewClient;
use tenure_store::secrets::new_access_token;
use tenure_store::testing::TestDatabase;

const SOURCE: &str = "the setting";

/// Three settings of one key each.
fn settings_of_keys() -> [String; 3] {
    std::array::from_fn(|_| SecretKeys::generate_setting())
}

fn keys(parts: &[&String]) -> SecretKeys {
    let parts: Vec<&str> = parts.iter().map(|part| part.as_str()).collect();
    SecretKeys::parse(&parts.join(",")).unwrap()
}

fn name(part: &String) -> String {
    keys(&[part]).checks()[0].name().to_owned()
}

async fn make_client(pool: &PgPool, keys: &SecretKeys, id: &str) {
    let client = NewClient {
        client_id: id.to_owned(),
        scopes: Vec::new(),
        description: String::new(),
        expires: None,
        delete_on_expiration: false,
    };
    assert!(clients::create(pool, keys, &client, &new_access_token()).await.unwrap());
}

async fn refusal(pool: &PgPool, keys: &SecretKeys) -> String {
    let before = settings::find(pool, settings::KEY_CHECKS).await.unwrap();
    let line = verify(pool, keys, SOURCE).await.unwrap_err().to_string();
    assert_eq!(settings::find(pool, settings::KEY_CHECKS).await.unwrap(), before, "a refusal changes nothing");
    assert!(line.contains(SOURCE) && !line.contains('\n'), "{line}");
    line
}

#[tokio::test]
async fn key_of_backup_is_checked_without_being_noted() {
    let database = TestDatabase::create().await;
    let (pool, [a, b, _]) = (database.pool(), settings_of_keys());
    check(pool, &keys(&[&a]), SOURCE).await.unwrap();
    make_client(pool, &keys(&[&a]), "ci").await;
    for noted in [false, true] {
        check(pool, &keys(&[&b, &a]), SOURCE).await.unwrap();
        let line = check(pool, &keys(&[&b]), SOURCE).await.unwrap_err().to_string();
        assert!(line.contains("does not open the tokens"), "{line}");
        assert_eq!(settings::find(pool, settings::KEY_CHECKS).await.unwrap().is_some(), noted);
        verify(pool, &keys(&[&a]), SOURCE).await.unwrap();
    }
    database.finish().await;
}

#[tokio::test]
async fn check_follows_first_key_and_any_key_may_match() {
    let database = TestDatabase::create().await;
    let (pool, [a, b, c]) = (database.pool(), settings_of_keys());
    assert!(!needs_key(pool).await.unwrap());
    verify(pool, &keys(&[&a]), SOURCE).await.unwrap();
    assert!(needs_key(pool).await.unwrap());
    let line = refusal(pool, &keys(&[&b, &c])).await;
    assert!(line.contains(&name(&a)) && line.contains(&name(&b)) && line.contains(&name(&c)), "{line}");
    // A new key at the end, then in front; the old one can go once no token needs it.
    for list in [&[&a, &b][..], &[&b, &a], &[&b]] {
        verify(pool, &keys(list), SOURCE).await.unwrap();
    }
    assert!(refusal(pool, &keys(&[&a])).await.contains(&name(&b)));
    database.finish().await;
}

#[tokio::test]
async fn removal_of_needed_key_is_refused() {
    let database = TestDatabase::create().await;
    let (pool, [a, b, _]) = (database.pool(), settings_of_keys());
    verify(pool, &keys(&[&a]), SOURCE).await.unwrap();
    for id in ["c1", "c2", "c3", "c4", "c5"] {
        make_client(pool, &keys(&[&a]), id).await;
    }
    verify(pool, &keys(&[&b, &a]), SOURCE).await.unwrap();
    make_client(pool, &keys(&[&b, &a]), "c6").await;
    for _ in 0..2 {
        let line = refusal(pool, &keys(&[&b])).await;
        assert!(line.contains(&format!("key {} was removed", name(&a))), "{line}");
        assert!(line.contains("c1, c2, c3 and 2 more clients"), "{line}");
    }
    for id in ["c1", "c2", "c3", "c4", "c5"] {
        assert!(clients::reset_token(pool, &keys(&[&b]), id, &new_access_token()).await.unwrap());
    }
    verify(pool, &keys(&[&b]), SOURCE).await.unwrap();
    database.finish().await;
}

#[tokio::test]
async fn database_without_check_is_checked_by_tokens() {
    let database = TestDatabase::create().await;
    let (pool, [a, b, c]) = (database.pool(), settings_of_keys());
    // More than a page.
    for number in 0..=TOKENS_PAGE {
        make_client(pool, &keys(&[&a]), &format!("c{number:04}")).await;
    }
    assert!(needs_key(pool).await.unwrap());
    let line = refusal(pool, &keys(&[&b])).await;
    assert!(line.contains("another key") && line.contains(&name(&b)), "{line}");
    assert!(choose(pool, keys(&[&b]), SOURCE).await.is_err());
    verify(pool, &keys(&[&c, &a]), SOURCE).await.unwrap();
    // The failing token is on the last page.
    make_client(pool, &keys(&[&b]), "z").await;
    assert!(refusal(pool, &keys(&[&c, &a])).await.contains("the tokens of z;"));
    database.finish().await;
}

#[tokio::test]
async fn command_encrypts_with_key_of_servers() {
    let database = TestDatabase::create().await;
    let (pool, [a, b, c]) = (database.pool(), settings_of_keys());
    let chosen = choose(pool, keys(&[&a]), SOURCE).await.unwrap();
    assert_eq!(chosen.checks(), keys(&[&a]).checks());
    assert!(choose(pool, keys(&[&b]), SOURCE).await.is_err(), "the first command decides");
    let chosen = choose(pool, keys(&[&c, &b, &a]), SOURCE).await.unwrap();
    assert_eq!(chosen.checks()[0], keys(&[&a]).checks()[0]);
    verify(pool, &keys(&[&a]), SOURCE).await.unwrap();
    // Without clients, the database accepts another key.
    settings::purge_keys_without_clients(pool).await.unwrap();
    verify(pool, &keys(&[&b]), SOURCE).await.unwrap();
    make_client(pool, &keys(&[&b]), "c1").await;
    settings::purge_keys_without_clients(pool).await.unwrap();
    assert!(refusal(pool, &keys(&[&a])).await.contains(&name(&b)));
    database.finish().await;
}
