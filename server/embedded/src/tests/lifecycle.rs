//! Start, stop and crash.

use super::super::binaries::Binaries;
use super::*;
use tenure_api::credentials::AccessToken;

#[tokio::test]
async fn data_survives_restart() {
    let folder = TestFolder::new();
    let first = folder.start().await;
    remember(&first.connect_options()).await;
    let sealed = first.secret_keys().unwrap().encrypt_token("c", &AccessToken::new("token".to_owned()));
    first.stop().await;
    assert!(PidFile::find(&folder.pg_dir()).is_none(), "a clean stop leaves no pid file");
    drop(first);

    let second = folder.start().await;
    assert_remembered(&second.connect_options()).await;
    assert!(second.secret_keys().unwrap().decrypt_token("c", &sealed).is_ok(), "the key is another one");
    second.stop().await;
}

#[tokio::test]
async fn cluster_is_durable_private_and_in_own_process_group() {
    let folder = TestFolder::new();
    let embedded = folder.start().await;
    embedded.secret_keys().unwrap();
    let credentials = RootCredentials { client_id: "root", access_token: "t", root_url: "http://127.0.0.1:1" };
    let written = write_root_credentials(&folder.data_dir(), &credentials).unwrap();
    let text = fs::read_to_string(&written).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json, serde_json::json!({"clientId": "root", "accessToken": "t", "rootUrl": "http://127.0.0.1:1"}));

    let mut connection = connect(&embedded.connect_options()).await;
    for (name, wanted) in [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("listen_addresses", ""),
        ("jit", "off"),
        ("autovacuum_naptime", "5s"),
        ("random_page_cost", "1.1"),
        ("server_encoding", "UTF8"),
    ] {
        let value: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut connection).await.unwrap();
        assert_eq!(value, wanted, "{name}");
    }
    let wrong_password = embedded.connect_options().password("guess");
    assert!(wrong_password.connect().await.is_err());

    for name in ["pg-password", "secret-key", "root-credentials.json", "lock", "postgres.log"] {
        let mode = fs::metadata(folder.data_dir().join(name)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let account = Account::choose(&folder.pg_dir()).unwrap();
    for name in ["pg", "run"] {
        let metadata = fs::metadata(folder.data_dir().join(name)).unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o700, account.uid()), "{name}");
    }
    let pid = Pid::from_raw(folder.postgres_pid());
    assert_eq!(getpgid(Some(pid)).unwrap(), pid, "a Ctrl-C for the server must not reach PostgreSQL");
    drop(connection);
    embedded.stop().await;
}

#[tokio::test]
async fn postgresql_of_killed_server_is_adopted() {
    let folder = TestFolder::new();
    let server = Server::ready(&folder).await;
    remember(&options_of(&folder).await).await;
    let pid = folder.postgres_pid();
    server.kill().await;

    let adopter = folder.start().await;
    assert_eq!(folder.postgres_pid(), pid);
    assert_remembered(&adopter.connect_options()).await;
    adopter.stop().await;
    assert!(PidFile::find(&folder.pg_dir()).is_none());
}

#[tokio::test]
async fn linked_cluster_on_another_disk_is_adopted() {
    let folder = TestFolder::new();
    folder.start().await.stop().await;
    let elsewhere = folder.base.path().join("elsewhere");
    fs::rename(folder.pg_dir(), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, folder.pg_dir()).unwrap();
    let server = Server::ready(&folder).await;
    let pid = folder.postgres_pid();
    server.kill().await;

    let adopter = folder.start().await;
    assert_eq!(folder.postgres_pid(), pid);
    adopter.stop().await;
    assert!(PidFile::find(&folder.pg_dir()).is_none());
}

#[tokio::test]
async fn killed_postgresql_is_restarted_if_started_or_adopted() {
    let folder = TestFolder::new();
    let server = Server::ready(&folder).await;
    remember(&options_of(&folder).await).await;
    kill_postgres_and_wait_for_the_next(&folder).await;
    server.kill().await;

    let adopter = Server::ready(&folder).await;
    kill_postgres_and_wait_for_the_next(&folder).await;
    assert_remembered(&options_of(&folder).await).await;
    adopter.stop().await;
    assert!(PidFile::find(&folder.pg_dir()).is_none());
}

#[tokio::test]
async fn log_is_kept_short_if_started_or_adopted() {
    let folder = TestFolder::new();
    let server = Server::ready(&folder).await;
    fill_log_and_wait_until_it_is_short(&folder).await;
    server.kill().await;

    let adopter = Server::ready(&folder).await;
    fill_log_and_wait_until_it_is_short(&folder).await;
    adopter.stop().await;
}

async fn fill_log_and_wait_until_it_is_short(folder: &TestFolder) {
    const MB: u64 = 1 << 20;
    let log = folder.data_dir().join("postgres.log");
    let mut long = fs::OpenOptions::new().append(true).open(&log).unwrap();
    std::io::copy(&mut std::io::Read::take(std::io::repeat(b'x'), 17 * MB), &mut long).unwrap();
    until("the log is moved aside", async || fs::metadata(&log).unwrap().len() < MB).await;
    assert_eq!(fs::metadata(folder.data_dir().join("postgres.log.old")).unwrap().len(), 16 * MB);
    // PostgreSQL still logs to the file.
    let mut connection = connect(&options_of(folder).await).await;
    assert!(sqlx::raw_sql("SELECT nonsense").execute(&mut connection).await.is_err());
    until("PostgreSQL logs on", async || fs::read_to_string(&log).unwrap().contains("nonsense")).await;
}

async fn kill_postgres_and_wait_for_the_next(folder: &TestFolder) {
    let options = options_of(folder).await;
    let old = folder.postgres_pid();
    kill(Pid::from_raw(old), Signal::SIGKILL).unwrap();
    until("another PostgreSQL takes connections", async || {
        PidFile::find_running(&folder.pg_dir()).is_some_and(|file| file.pid != old) && options.connect().await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn data_survives_kill_of_server_and_postgresql() {
    let folder = TestFolder::new();
    let server = Server::ready(&folder).await;
    remember(&options_of(&folder).await).await;
    let postgres = Pid::from_raw(folder.postgres_pid());
    server.kill().await;
    kill(postgres, Signal::SIGKILL).unwrap();

    let next = folder.start().await;
    assert_remembered(&next.connect_options()).await;
    next.stop().await;
}

#[tokio::test]
async fn first_start_can_be_killed_at_any_stage() {
    for stage in ["pg-password", "pg.unfinished-", "pg", "postgres.log"] {
        let folder = TestFolder::new();
        let server = Server::spawn(&folder);
        until(stage, async || {
            fs::read_dir(folder.data_dir())
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .any(|name| name == stage || stage.ends_with('-') && name.starts_with(stage))
        })
        .await;
        server.kill().await;
        let embedded = folder.start().await;
        remember(&embedded.connect_options()).await;
        embedded.stop().await;
    }
}

/// The server was killed before its pid file was written, so that the next start did not find it.
#[tokio::test]
async fn postgresql_quicker_than_started_one_is_adopted() {
    let folder = TestFolder::new();
    let first = folder.start().await;
    remember(&first.connect_options()).await;
    first.stop().await;
    drop(first);
    let account = Account::choose(&folder.pg_dir()).unwrap();
    let real = Binaries::find(test_pg_bin().as_deref(), None, &account).await.unwrap();
    let pg_bin = folder.base.path().join("bin");
    fs::create_dir(&pg_bin).unwrap();
    std::os::unix::fs::symlink(&real.initdb, pg_bin.join("initdb")).unwrap();
    // The script first starts another PostgreSQL, which writes its pid file first.
    let script = "#!/bin/sh\ncase $* in\n*listen_addresses*)\n    if mkdir \"$2/another\"; then\n        REAL \"$@\" &\n        \
                  while [ ! -s \"$2/postmaster.pid\" ]; do sleep 0.02; done\n    fi ;;\nesac\nexec REAL \"$@\"\n";
    fs::write(pg_bin.join("postgres"), script.replace("REAL", real.postgres.to_str().unwrap())).unwrap();
    for path in [pg_bin.clone(), pg_bin.join("postgres")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let settings = EmbeddedSettings { pg_bin: Some(pg_bin), ..folder.settings() };
    let second = Embedded::start(&settings).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(folder.pg_dir().join("another").exists(), "the other PostgreSQL was not started");
    assert_remembered(&second.connect_options()).await;
    second.stop().await;
}

#[tokio::test]
async fn drop_stops_postgresql() {
    let folder = TestFolder::new();
    drop(folder.start().await);
    until("PostgreSQL ends", async || PidFile::find_running(&folder.pg_dir()).is_none()).await;
}

#[tokio::test]
async fn cancelled_start_stops_adopted_postgresql() {
    let folder = TestFolder::new();
    Server::ready(&folder).await.kill().await;
    let pid = folder.postgres_pid();
    let lock = DataDirLock::take(&folder.data_dir()).unwrap();
    let cluster = Cluster::prepare(&folder.data_dir(), test_pg_bin().as_deref()).await.unwrap();
    let (postmaster, stopping) = (Mutex::default(), CancellationToken::new());
    let mut embedded = Embedded { cluster, postmaster, stopping, _lock: lock };
    // After one poll, PostgreSQL was found and its response is pending.
    tokio::select! {
        biased;
        _ = embedded.cluster.start(embedded.postmaster.get_mut()) => panic!("it did not wait for PostgreSQL"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(embedded.postmaster.get_mut().as_ref().map(Postmaster::pid), Some(pid));
    drop(embedded);
    until("PostgreSQL ends", async || PidFile::find_running(&folder.pg_dir()).is_none()).await;
}

#[tokio::test]
async fn reused_pid_does_not_prevent_start() {
    let folder = TestFolder::new();
    folder.start().await.stop().await;
    let account = Account::choose(&folder.pg_dir()).unwrap();
    let mut stranger = account.command(Path::new("/bin/sleep")).arg("600").kill_on_drop(true).spawn().unwrap();
    let pid = stranger.id().unwrap();
    let run = folder.data_dir().join("run");
    for path in [folder.pg_dir().join("postmaster.pid"), run.join(".s.PGSQL.5432.lock")] {
        let text = format!("{pid}\n{}\n1\n5432\n{}\n\n\nready\n", folder.pg_dir().display(), run.display());
        files::write_private(&path, text.as_bytes(), Some(&account)).unwrap();
    }
    let embedded = folder.start().await;
    assert_ne!(folder.postgres_pid().unsigned_abs(), pid);
    embedded.stop().await;
    stranger.kill().await.unwrap();
}

#[tokio::test]
async fn data_directory_with_long_path_works() {
    let mut folder = TestFolder::new();
    folder.data_dir = folder.base.path().join("directory".repeat(14));
    let embedded = folder.start().await;
    remember(&embedded.connect_options()).await;
    let socket_dir = embedded.connect_options().get_socket().unwrap().clone();
    assert!(!socket_dir.starts_with(folder.data_dir()), "{}", socket_dir.display());
    embedded.stop().await;
    fs::remove_dir_all(socket_dir).unwrap();
}

#[tokio::test]
async fn commands_start_cluster_without_server() {
    let folder = TestFolder::new();
    let access = open(&folder.settings(), IfAbsent::Make).await.unwrap();
    assert!(matches!(access, Access::Own(_)));
    remember(&access.connect_options()).await;
    access.close().await;
    let server = Server::ready(&folder).await;
    let access = open(&folder.settings(), IfAbsent::Make).await.unwrap();
    assert!(matches!(access, Access::Running(_)));
    assert_remembered(&access.connect_options()).await;
    access.close().await;
    server.stop().await;
}

#[tokio::test]
async fn dangerous_settings_are_named_in_warnings() {
    use tenure_store::cluster::find_warnings;
    let folder = TestFolder::new();
    let embedded = folder.start().await;
    let fresh = || sqlx::PgPool::connect_with(embedded.connect_options());
    assert_eq!(find_warnings(&fresh().await.unwrap()).await.unwrap(), []);
    let spoil = "ALTER DATABASE tenure SET track_counts = off; ALTER DATABASE tenure SET jit = on";
    sqlx::raw_sql(spoil).execute(&mut connect(&embedded.connect_options()).await).await.unwrap();
    let pool = fresh().await.unwrap();
    let warnings = find_warnings(&pool).await.unwrap();
    let names: Vec<&str> = warnings.iter().map(|warning| warning.setting.as_str()).collect();
    assert_eq!(names, ["jit", "track_counts"]);
    assert!(tenure_store::cluster::get_major_version(&pool).await.unwrap() >= 15);
    embedded.stop().await;
}
