//! Refused starts: one line with the way out. Some tests need root to run as another user.

use super::*;

/// User and group of an ordinary user on every system.
const NOBODY: u32 = 65534;

#[tokio::test]
async fn second_server_is_refused() {
    let folder = TestFolder::new();
    let server = Server::ready(&folder).await;
    let line = folder.refusal().await;
    let pid = server.child.id().unwrap().to_string();
    assert!(line.contains("in use") && line.contains(&pid) && line.contains("--data-dir"), "{line}");
    server.stop().await;
    folder.start().await.stop().await;
}

#[tokio::test]
async fn missing_or_old_postgresql_is_refused() {
    let folder = TestFolder::new();
    let empty = folder.base.path().join("empty");
    let old = folder.base.path().join("old");
    for pg_bin in [&empty, &old] {
        fs::create_dir(pg_bin).unwrap();
        fs::set_permissions(pg_bin, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["postgres", "initdb"] {
        let program = old.join(name);
        fs::write(&program, "#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (pg_bin, part) in [(&empty, "no postgres"), (&old, "only PostgreSQL 14")] {
        let settings = EmbeddedSettings { pg_bin: Some(pg_bin.clone()), ..folder.settings() };
        let line = one_line(&Embedded::start(&settings).await.err().unwrap());
        assert!(line.contains(part) && line.contains("--pg-bin") && line.contains("apt install"), "{line}");
    }
}

#[tokio::test]
async fn cluster_of_another_major_version_is_refused() {
    let folder = TestFolder::new();
    folder.start().await.stop().await;
    fs::write(folder.pg_dir().join("PG_VERSION"), "13\n").unwrap();
    let line = folder.refusal().await;
    assert!(line.contains("made by PostgreSQL 13") && line.contains("pg_upgrade"), "{line}");
}

#[tokio::test]
async fn unfinished_restore_is_refused() {
    let folder = TestFolder::new();
    begin_restore(&folder.data_dir()).unwrap();
    let embedded = Embedded::start_restoring(&folder.settings()).await.unwrap_or_else(|error| panic!("{error}"));
    remember(&embedded.connect_options()).await;
    embedded.stop().await;
    drop(embedded);
    let line = folder.refusal().await;
    assert!(line.contains("unfinished restore") && line.contains("remove the directory"), "{line}");
    let line = one_line(&open(&folder.settings(), IfAbsent::Refuse).await.err().unwrap());
    assert!(line.contains("unfinished restore"), "{line}");
    end_restore(&folder.data_dir()).unwrap();
    let embedded = folder.start().await;
    assert_remembered(&embedded.connect_options()).await;
    embedded.stop().await;
}

#[tokio::test]
async fn directory_without_cluster_or_password_is_refused() {
    let folder = TestFolder::new();
    folder.start().await.stop().await;
    fs::remove_file(folder.data_dir().join("pg-password")).unwrap();
    let line = folder.refusal().await;
    assert!(line.contains("pg-password") && line.contains("restore"), "{line}");
    fs::remove_file(folder.pg_dir().join("PG_VERSION")).unwrap();
    let line = folder.refusal().await;
    assert!(line.contains("not a PostgreSQL cluster"), "{line}");
}

#[tokio::test]
async fn missing_cluster_that_has_run_is_not_created_again() {
    let folder = TestFolder::new();
    let embedded = folder.start().await;
    remember(&embedded.connect_options()).await;
    embedded.stop().await;
    drop(embedded);
    let volume = folder.base.path().join("volume");
    fs::rename(folder.pg_dir(), &volume).unwrap();
    let assert_names = |line: &str| {
        let named = [folder.pg_dir(), folder.data_dir().join("pg-password")];
        assert!(named.iter().all(|path| line.contains(path.to_str().unwrap())) && line.contains("mount"), "{line}");
    };
    assert_names(&folder.refusal().await);
    fs::create_dir(folder.pg_dir()).unwrap();
    assert_names(&folder.refusal().await);
    assert_names(&one_line(&open(&folder.settings(), IfAbsent::Refuse).await.err().unwrap()));

    fs::remove_dir(folder.pg_dir()).unwrap();
    fs::rename(&volume, folder.pg_dir()).unwrap();
    let embedded = folder.start().await;
    assert_remembered(&embedded.connect_options()).await;
    embedded.stop().await;
    drop(embedded);

    fs::remove_dir_all(folder.pg_dir()).unwrap();
    fs::remove_file(folder.data_dir().join("pg-password")).unwrap();
    let anew = folder.start().await;
    remember(&anew.connect_options()).await;
    anew.stop().await;
}

#[tokio::test]
async fn refusal_passes_on_reason_of_postgresql() {
    let folder = TestFolder::new();
    folder.start().await.stop().await;
    let conf = folder.pg_dir().join("postgresql.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text + "\nwork_mem = plenty\n").unwrap();
    let line = folder.refusal().await;
    assert!(line.contains("work_mem") && line.contains("plenty") && line.contains("postgres.log"), "{line}");
}

#[tokio::test]
async fn uncreatable_data_directory_is_refused() {
    let folder = TestFolder::new();
    fs::write(folder.data_dir(), "a file").unwrap();
    let line = folder.refusal().await;
    assert!(line.contains("cannot make the data directory"), "{line}");
}

#[tokio::test]
async fn damaged_secret_key_is_refused() {
    let folder = TestFolder::new();
    let embedded = folder.start().await;
    fs::write(folder.data_dir().join("secret-key"), "short").unwrap();
    let line = one_line(&embedded.secret_keys().err().unwrap());
    assert!(line.contains("secret-key") && line.contains("backup") && !line.contains("short"), "{line}");
    embedded.stop().await;
}

#[tokio::test]
async fn refusal_names_directory_closed_to_database_user() {
    if !geteuid().is_root() {
        return;
    }
    let folder = TestFolder::new();
    fs::set_permissions(folder.base.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let line = folder.refusal().await;
    let fix = format!("chmod o+x {}", folder.base.path().display());
    assert!(line.contains("user postgres") && line.contains(&fix), "{line}");
    fs::set_permissions(folder.base.path(), fs::Permissions::from_mode(0o711)).unwrap();
    folder.start().await.stop().await;
}

#[tokio::test]
async fn refusal_names_directory_closed_before_postgresql() {
    if !geteuid().is_root() {
        return;
    }
    let folder = TestFolder::new();
    let closed = folder.base.path().join("closed");
    let pg_bin = closed.join("bin");
    fs::create_dir_all(&pg_bin).unwrap();
    for name in ["postgres", "initdb"] {
        let program = pg_bin.join(name);
        fs::write(&program, "#!/bin/sh\necho 'postgres (PostgreSQL) 18.0'\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let settings = EmbeddedSettings { pg_bin: Some(pg_bin), ..folder.settings() };
    let line = one_line(&Embedded::start(&settings).await.err().unwrap());
    let fix = format!("chmod o+x {}", closed.display());
    assert!(line.contains("user postgres cannot run") && line.contains(&fix), "{line}");
}

#[tokio::test]
async fn closed_parent_refuses_root_before_any_change() {
    if !geteuid().is_root() {
        return;
    }
    let folder = TestFolder::new();
    let closed = folder.base.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let link = folder.base.path().join("link");
    std::os::unix::fs::symlink(&closed, &link).unwrap();
    for data_dir in [closed.join("data"), closed.join("deep/data"), link.join("data"), closed.join("deep/../data")] {
        let settings = EmbeddedSettings { data_dir, ..folder.settings() };
        for error in [Embedded::start(&settings).await.err(), open(&settings, IfAbsent::Make).await.err()] {
            let line = one_line(&error.unwrap());
            let fix = format!("chmod o+x {}", closed.display());
            assert!(line.contains("user postgres") && line.contains(&fix), "{line}");
        }
        let left: Vec<_> = fs::read_dir(&closed).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{} left {left:?}", settings.data_dir.display());
    }
}

#[tokio::test]
async fn ordinary_user_runs_own_cluster_and_no_other() {
    if !geteuid().is_root() {
        return;
    }
    let mine = TestFolder::new();
    place_of(&mine, NOBODY);
    let mut server = Server::spawn_as(&mine, NOBODY);
    assert_eq!(server.news().await, "ready");
    assert_eq!(fs::metadata(mine.pg_dir()).unwrap().uid(), NOBODY);
    remember(&options_of(&mine).await).await;
    server.stop().await;

    // Root takes the directory over and runs PostgreSQL as its owner.
    let as_root = mine.start().await;
    assert_remembered(&as_root.connect_options()).await;
    as_root.stop().await;

    let roots = TestFolder::new();
    roots.start().await.stop().await;
    let line = Server::spawn_as(&roots, NOBODY).news().await;
    assert!(line.starts_with("refused: cannot open") && line.contains("Permission denied"), "{line}");
}

fn place_of(folder: &TestFolder, uid: u32) {
    std::os::unix::fs::chown(folder.base.path(), Some(uid), Some(uid)).unwrap();
}
