//! A way to the database that can fall silent.

use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A way to the database that can fall silent, as a network does that loses what it carries.
pub struct Way {
    options: PgConnectOptions,
    silence: Arc<Notify>,
    accepting: JoinHandle<()>,
}

impl Way {
    /// Listens in front of the database that these options lead to.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(to: &PgConnectOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let silence = Arc::new(Notify::new());
        let accepting = tokio::spawn(accept(listener, to.clone(), Arc::clone(&silence)));
        Self { options: to.clone().port(port), silence, accepting }
    }

    /// How to connect by it.
    #[must_use]
    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// What is connected gets no answer any more, and no end either. What connects later is answered.
    pub fn fall_silent(&self) {
        self.silence.notify_waiters();
    }
}

impl Drop for Way {
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
