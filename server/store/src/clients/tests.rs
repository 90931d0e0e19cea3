//! Each test creates a database on the cluster of `TENURE_TEST_DATABASE_URL`.

use std::str::FromStr as _;

use chrono::TimeDelta;

use super::*;
use crate::testing::with_clients;

const KEYS: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
fn keys() -> SecretKeys {
    SecretKeys::parse(KEYS).unwrap()
}

fn now() -> DateTime<Utc> {
    DateTime::from_str("2026-01-31T12:00:00Z").unwrap()
}

fn ci() -> NewClient {
    NewClient {
        client_id: "project/ci".to_owned(),
        scopes: vec!["queue:create-task:*".to_owned(), "x".to_owned()],
        description: "builds".to_owned(),
        expires: None,
        delete_on_expiration: false,
    }
}

fn token(text: &str) -> AccessToken {
    AccessToken::new(text.to_owned())
}

#[tokio::test]
async fn client_is_created_once_and_found_with_token() {
    with_clients(|pool| async move {
        assert!(create(&pool, &keys(), &ci(), &token("first")).await.unwrap());
        assert!(!create(&pool, &keys(), &ci(), &token("second")).await.unwrap());
        let account = find_account(&pool, &keys(), "project/ci").await.unwrap().unwrap();
        assert_eq!(account.access_token, token("first"));
        assert_eq!(account.scopes, ci().scopes);
        assert!(!account.disabled && !account.expired && account.expires.is_none());
        assert!(find_account(&pool, &keys(), "nobody").await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn database_stores_no_plain_token() {
    with_clients(|pool| async move {
        create(&pool, &keys(), &ci(), &token("hush-hush")).await.unwrap();
        let stored: Vec<u8> = sqlx::query_scalar("SELECT token FROM clients").fetch_one(&pool).await.unwrap();
        assert!(!stored.windows(4).any(|window| window == b"hush"));
    })
    .await;
}

#[tokio::test]
async fn client_expires_by_database_clock() {
    with_clients(|pool| async move {
        for (id, seconds, expired) in [("later", 1, false), ("now", 0, false), ("earlier", -1, true)] {
            let expires = Some(now() + TimeDelta::seconds(seconds));
            let client = NewClient { client_id: id.to_owned(), expires, ..ci() };
            create(&pool, &keys(), &client, &token("t")).await.unwrap();
            let account = find_account(&pool, &keys(), id).await.unwrap().unwrap();
            assert_eq!((account.expires, account.expired), (expires, expired), "{id}");
        }
    })
    .await;
}

#[tokio::test]
async fn token_of_unknown_key_is_error_with_client_id() {
    with_clients(|pool| async move {
        create(&pool, &keys(), &ci(), &token("t")).await.unwrap();
        let other = SecretKeys::parse(&SecretKeys::generate_setting()).unwrap();
        let error = find_account(&pool, &other, "project/ci").await.unwrap_err();
        assert!(error.to_string().contains("project/ci"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn clients_are_listed_by_id_without_token() {
    with_clients(|pool| async move {
        let other = NewClient { client_id: "a".to_owned(), expires: Some(now()), ..ci() };
        for client in [ci(), other] {
            create(&pool, &keys(), &client, &token("t")).await.unwrap();
        }
        let all = list(&pool, "", None, None).await.unwrap();
        assert_eq!(all.iter().map(|client| client.client_id.as_str()).collect::<Vec<_>>(), ["a", "project/ci"]);
        assert_eq!(find(&pool, "project/ci").await.unwrap().as_ref(), Some(&all[1]));
        assert_eq!(find(&pool, "nobody").await.unwrap(), None);
        let json = serde_json::to_value(&all[0]).unwrap();
        assert_eq!(json["expires"], "2026-01-31T12:00:00.000Z");
        assert_eq!(json["lastModified"], json["created"]);
        assert!(json.get("token").is_none());
    })
    .await;
}

#[tokio::test]
async fn clients_are_listed_in_pages_and_by_prefix() {
    with_clients(|pool| async move {
        for id in ["a/b", "a_b", "A", "a/c", "b"] {
            create(&pool, &keys(), &NewClient { client_id: id.to_owned(), ..ci() }, &token("t")).await.unwrap();
        }
        let ids = async |prefix: &str, after, limit| {
            let page = list(&pool, prefix, after, limit).await.unwrap();
            page.into_iter().map(|client| client.client_id).collect::<Vec<_>>()
        };
        assert_eq!(ids("", None, None).await, ["A", "a/b", "a/c", "a_b", "b"]);
        assert_eq!(ids("a/", None, None).await, ["a/b", "a/c"]);
        assert_eq!(ids("a_", None, None).await, ["a_b"]);
        assert_eq!(ids("", Some("a/b"), Some(2)).await, ["a/c", "a_b"]);
    })
    .await;
}

#[tokio::test]
async fn change_keeps_unnamed_fields() {
    with_clients(|pool| async move {
        create(&pool, &keys(), &ci(), &token("t")).await.unwrap();
        let unchanged = find(&pool, "project/ci").await.unwrap().unwrap();
        let change = ClientChange { description: Some("new".to_owned()), ..ClientChange::default() };
        let changed = update(&pool, "project/ci", None, &change).await.unwrap().unwrap();
        assert_eq!(changed, ClientInfo { description: "new".to_owned(), ..unchanged });
        let change = ClientChange {
            scopes: Some(vec![]),
            expires: Some(Some(now())),
            delete_on_expiration: Some(true),
            ..ClientChange::default()
        };
        let seen = ci().scopes;
        assert_eq!(
            update(&pool, "project/ci", Some(&seen[..1]), &change).await.unwrap(),
            None,
            "another change was faster"
        );
        let changed = update(&pool, "project/ci", Some(&seen), &change).await.unwrap().unwrap();
        assert_eq!((changed.scopes.len(), changed.expires), (0, Some(Timestamp::new(now()))));
        assert!(changed.delete_on_expiration);
        let forever = ClientChange { expires: Some(None), ..ClientChange::default() };
        assert_eq!(update(&pool, "project/ci", None, &forever).await.unwrap().unwrap().expires, None);
        assert_eq!(update(&pool, "nobody", None, &forever).await.unwrap(), None);
        assert_eq!(find(&pool, "project/ci").await.unwrap().unwrap().description, "new");
    })
    .await;
}

#[tokio::test]
async fn token_is_repeated_for_recent_identical_client() {
    with_clients(|pool| async move {
        let client = NewClient { expires: Some(now()), ..ci() };
        create(&pool, &keys(), &client, &token("t")).await.unwrap();
        let recent = async |client: &NewClient| find_recent_token(&pool, &keys(), client).await.unwrap();
        assert_eq!(recent(&client).await, Some(token("t")));
        for other in [
            NewClient { scopes: vec![], ..client.clone() },
            NewClient { description: "other".to_owned(), ..client.clone() },
            NewClient { expires: None, ..client.clone() },
            NewClient { delete_on_expiration: true, ..client.clone() },
            NewClient { client_id: "other".to_owned(), ..client.clone() },
        ] {
            assert_eq!(recent(&other).await, None, "{other:?}");
        }
        set_disabled(&pool, "project/ci", true).await.unwrap();
        assert_eq!(recent(&client).await, None);
        set_disabled(&pool, "project/ci", false).await.unwrap();
        assert_eq!(recent(&client).await, Some(token("t")));
        let mut later = pool.begin().await.unwrap();
        sqlx::raw_sql("SET LOCAL test.now = '2026-01-31T12:15:00Z'").execute(&mut *later).await.unwrap();
        assert_eq!(find_recent_token(&mut *later, &keys(), &client).await.unwrap(), None);
        drop(later);
        reset_token(&pool, &keys(), "project/ci", &token("new")).await.unwrap();
        assert_eq!(recent(&client).await, None);
    })
    .await;
}

#[tokio::test]
async fn use_is_recorded_every_six_hours() {
    with_clients(|pool| async move {
        create(&pool, &keys(), &ci(), &token("t")).await.unwrap();
        let look = async |at: &'static str| {
            let mut conn = pool.begin().await.unwrap();
            sqlx::query("SELECT set_config('test.now', $1, true)").bind(at).execute(&mut *conn).await.unwrap();
            let news = find_account(&mut *conn, &keys(), "project/ci").await.unwrap().unwrap().use_is_news;
            note_use(&mut *conn, "project/ci").await.unwrap();
            let used = find(&mut *conn, "project/ci").await.unwrap().unwrap().last_date_used.to_string();
            conn.commit().await.unwrap();
            (news, used)
        };
        let first = "2026-01-31T13:00:00.000Z";
        assert_eq!(look(first).await, (true, first.to_owned()));
        assert_eq!(look("2026-01-31T18:59:00.000Z").await, (false, first.to_owned()));
        let second = "2026-01-31T19:01:00.000Z";
        assert_eq!(look(second).await, (true, second.to_owned()));
    })
    .await;
}

#[tokio::test]
async fn database_rejects_same_ids_as_code() {
    let long = "x".repeat(256);
    for id in ["", "a b", "a~b", "\u{e9}", long.as_str()] {
        assert!(!valid_client_id(id), "{id}");
    }
    assert!(valid_client_id(&"x".repeat(255)));
    with_clients(|pool| async move {
        for id in ["", "a b", "tenure~task-credentials"] {
            let client = NewClient { client_id: id.to_owned(), ..ci() };
            assert!(create(&pool, &keys(), &client, &token("t")).await.is_err(), "{id}");
        }
    })
    .await;
}
