//! A database proxy that can stop answering.

use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Simulates a network that loses packets.
pub struct Proxy {
    options: PgConnectOptions,
    silence: Arc<Notify>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to the database of these options.
    pub async fn start(to: &PgConnectOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let silence = Arc::new(Notify::new());
        let accepting = tokio::spawn(accept(listener, to.clone(), Arc::clone(&silence)));
        Self { options: to.clone().host("127.0.0.1").port(port), silence, accepting }
    }

    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Stops replies on open connections without closing them. Later connections work.
    pub fn fall_silent(&self) {
        self.silence.notify_waiters();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, to: PgConnectOptions, silence: Arc<Notify>) {
    while let Ok((mut here, _)) = listener.accept().await {
        let (host, port, silence) = (to.get_host().to_owned(), to.get_port(), Arc::clone(&silence));
        tokio::spawn(async move {
            let there = TcpStream::connect((host.as_str(), port)).await;
            let mut there = there.expect("the test cluster accepts connections");
            tokio::select! {
                () = silence.notified() => std::future::pending::<()>().await,
                _ = copy_bidirectional(&mut here, &mut there) => {}
            }
        });
    }
}
