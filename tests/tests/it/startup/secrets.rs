//! Secrets in files, and `tenure serve --check`.

use tenure_tests::db::TestDatabase;
use tenure_tests::http::Account;
use tenure_tests::server::{Launch, fresh_secret_key};

use crate::rig::{call, client_of, finish, new_folder, refusal, stderr, stdout, tenure};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_come_from_files_and_credentials() {
    let (database, key, folder) = (TestDatabase::create_migrated().await, fresh_secret_key(), new_folder());
    let credentials = folder.path().join("credentials");
    std::fs::create_dir(&credentials).unwrap();
    let (url_file, key_file) = (credentials.join("database-url"), credentials.join("secret-key"));
    std::fs::write(&url_file, format!("{}\n", database.url())).unwrap();
    std::fs::write(&key_file, format!("{key}\n")).unwrap();

    let files = ["--database-url-file", url_file.to_str().unwrap(), "--secret-key-file", key_file.to_str().unwrap()];
    let made = tenure(&[&["client", "create", "root", "--scope", "*"][..], &files].concat(), &[]).await;
    assert!(made.status.success(), "{}", stderr(&made));
    let root = serde_json::from_slice::<Account>(&made.stdout).unwrap().credentials;
    let by_file = Launch::default().flag(files[0], files[1]).flag(files[2], files[3]);
    let by_credentials = Launch::default().env("CREDENTIALS_DIRECTORY", &credentials);
    for (name, launch) in [("file", by_file), ("credentials", by_credentials)] {
        let server = launch.start(folder.path(), name).await;
        assert!(server.log().contains("external database"), "{name}: {}", server.log());
        let answer = call(&mut client_of(&server), &root, "GET", "/api/auth/v1/scopes/current", None).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        assert!(server.stop().await.success());
    }
    // The key in the environment outranks the file.
    let other = fresh_secret_key();
    let wrong = finish(by_file_and_key(&files, &other).command(&folder.path().join("wrong"))).await;
    assert_eq!(wrong.status.code(), Some(1), "{}", stderr(&wrong));
    assert!(stderr(&wrong).contains("--secret-key (TENURE_SECRET_KEY)"), "{}", stderr(&wrong));
}

fn by_file_and_key(files: &[&str; 4], key: &str) -> Launch {
    Launch::default().flag(files[0], files[1]).flag(files[2], files[3]).env("TENURE_SECRET_KEY", key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_file_stops_start_and_creates_nothing() {
    let folder = new_folder();
    let (missing, empty, data) =
        (folder.path().join("missing"), folder.path().join("secret-key"), folder.path().join("data"));
    std::fs::write(&empty, "\n").unwrap();
    for (flag, setting) in [
        ("--secret-key-file", "--secret-key-file (TENURE_SECRET_KEY_FILE)"),
        ("--database-url-file", "--database-url-file (DATABASE_URL_FILE)"),
    ] {
        for (path, reason) in [(&missing, "the file cannot be read"), (&empty, "the file is empty")] {
            let line = refusal(&finish(Launch::default().flag(flag, path).command(&data)).await, 2);
            assert!(line.starts_with(&format!("tenure: {setting} is '{}': {reason}", path.display())), "{line}");
        }
    }
    let by_credentials = Launch::default().env("CREDENTIALS_DIRECTORY", folder.path());
    let line = refusal(&finish(by_credentials.command(&data)).await, 2);
    assert!(line.starts_with(&format!("tenure: the credential secret-key is '{}'", empty.display())), "{line}");
    assert!(!data.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_prints_each_setting_with_its_source() {
    let (folder, key) = (new_folder(), fresh_secret_key());
    let (credential, data) = (folder.path().join("secret-key"), folder.path().join("data"));
    std::fs::write(&credential, &key).unwrap();
    // Nothing answers at this address, and the port is in use.
    let url = "postgres://me:hunter2@192.0.2.1/tenure";
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let data_dir = data.to_str().unwrap();
    let args = ["serve", "--check", "--claim-timeout", "90s", "--data-dir", data_dir];
    let environment = [
        ("DATABASE_URL", url),
        ("TENURE_LISTEN", listen.as_str()),
        ("TENURE_METRICS_TOKEN", "hunter2"),
        ("CREDENTIALS_DIRECTORY", folder.path().to_str().unwrap()),
    ];
    let output = tenure(&args, &environment).await;
    let text = stdout(&output);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{text}");
    for line in [
        format!("listen = {listen} (environment variable TENURE_LISTEN)"),
        "database-url = postgres://me:***@192.0.2.1/tenure (environment variable DATABASE_URL)".to_owned(),
        format!("data-dir = {data_dir} (flag)"),
        "claim-timeout = 90s (flag)".to_owned(),
        "claim-work-wait = 20s (default)".to_owned(),
        "secret-key = *** (credentials directory)".to_owned(),
        "metrics-token = *** (environment variable TENURE_METRICS_TOKEN)".to_owned(),
    ] {
        assert!(text.lines().any(|one| one == line), "{line:?} is missing:\n{text}");
    }
    assert!(!text.contains("hunter2") && !text.contains(&key), "{text}");
    assert!(!data.exists());

    for (variable, value) in [("TENURE_CLAIM_TIMEOUT", "6d"), ("TENURE_DRAIN_DELAY", "1"), ("TENURE_LOG", "a=b=c")] {
        let line = refusal(&tenure(&["serve", "--check"], &[(variable, value)]).await, 2);
        let flag = format!("--{}", variable["TENURE_".len()..].to_lowercase().replace('_', "-"));
        assert!(line.contains(&flag) || line.contains(variable), "{line}");
    }
}
