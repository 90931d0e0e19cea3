//! Messages to a service manager. A socket of the test stands for systemd's.

use std::path::{Path, PathBuf};

use tenure_tests::server::{Launch, Server};
use tokio::net::UnixDatagram;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::proxy::Proxy;
use crate::rig::{DataFolder, Raw, Rig, TIMEOUT, embedded, eventually, new_folder};

const READY: &str = "READY=1\n";
const WATCHDOG: &str = "WATCHDOG=1\n";
/// Time until the end of the process, in microseconds.
const STOPPING: &str = "STOPPING=1\nEXTEND_TIMEOUT_USEC=25000000\n";
const DELAYED: &str = "STOPPING=1\nEXTEND_TIMEOUT_USEC=26000000\n";
/// In microseconds; beats are sent twice as often.
const WATCHDOG_USEC: &str = "400000";

struct Manager {
    path: PathBuf,
    messages: UnboundedReceiver<String>,
}

impl Manager {
    fn listen(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let (sender, messages) = unbounded_channel();
        // Read at once: a full socket would stop its writers.
        tokio::spawn(async move {
            let mut message = [0; 4096];
            while let Ok(length) = socket.recv(&mut message).await {
                if sender.send(String::from_utf8_lossy(&message[..length]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { path, messages }
    }

    fn environment(&self, launch: Launch) -> Launch {
        launch.env("NOTIFY_SOCKET", &self.path)
    }

    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(TIMEOUT, self.messages.recv()).await;
        next.expect("the server sends a message").expect("the socket is open")
    }

    /// Messages received so far.
    fn received(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.messages.try_recv().ok()).collect()
    }
}

pub(super) async fn status(server: &Server, path: &str) -> u16 {
    Raw::new("GET", path).send(server.root_url()).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_is_notified_of_start_life_and_stop() {
    let folder = new_folder();
    let mut manager = Manager::listen(folder.path());
    let mut rig = Rig::start_with(|launch| {
        manager.environment(launch).env("WATCHDOG_USEC", WATCHDOG_USEC).flag("--drain-delay", "1s")
    })
    .await;
    assert_eq!(manager.next().await, READY);
    for _ in 0..4 {
        assert_eq!(manager.next().await, WATCHDOG);
    }
    rig.server.terminate().unwrap();
    let stopping = loop {
        let message = manager.next().await;
        if message != WATCHDOG {
            break message;
        }
    };
    assert_eq!(stopping, DELAYED);
    assert!(rig.server.ended().await.success(), "{}", rig.server.log_tail());
    assert!(manager.received().iter().all(|message| message == WATCHDOG), "the last message is that it stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchdog_does_not_depend_on_database() {
    let rig = Rig::start().await;
    let proxy = Proxy::before(rig.database.url()).await;
    let folder = new_folder();
    let mut manager = Manager::listen(folder.path());
    let launch = manager.environment(Launch::on_database(proxy.url(), &rig.secret_key));
    let server = launch.env("WATCHDOG_USEC", WATCHDOG_USEC).start(folder.path(), "behind").await;
    assert_eq!(status(&server, "/readyz").await, 200);
    proxy.cut().await;
    let refused = eventually("it is not ready", async || {
        let reply = Raw::new("GET", "/readyz").send(server.root_url()).await;
        (reply.status == 503).then_some(reply)
    })
    .await;
    assert_eq!(refused.json()["code"], "ServiceUnavailable");
    assert!(refused.text().contains("the database commits no writes"), "{}", refused.text());
    assert_eq!(status(&server, "/livez").await, 200);
    manager.received();
    for _ in 0..4 {
        assert_eq!(manager.next().await, WATCHDOG);
    }
    proxy.mend();
    eventually("it is ready", async || (status(&server, "/readyz").await == 200).then_some(())).await;
    assert!(server.stop().await.success());
}

/// Debian's PostgreSQL notifies a service manager too, and must not speak for its server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_postgresql_does_not_notify_manager() {
    let data_folder = DataFolder::new();
    let mut manager = Manager::listen(data_folder.folder.path());
    let (server, _) = data_folder.start(&manager.environment(embedded())).await;
    assert!(server.stop().await.success());
    assert_eq!([manager.next().await, manager.next().await], [READY, STOPPING]);
    assert!(manager.received().is_empty(), "PostgreSQL has sent a message");
}
