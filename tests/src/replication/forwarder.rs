//! A TCP proxy between the servers and the two PostgreSQLs. It forwards connections to one
//! PostgreSQL or to none. A switch ends existing connections, as HAProxy's
//! `on-marked-down shutdown-sessions` does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

#[derive(Debug)]
pub struct Forwarder {
    port: u16,
    state: Arc<Mutex<State>>,
    accepting: AbortHandle,
}

#[derive(Debug, Default)]
struct State {
    target: Option<u16>,
    connections: Vec<AbortHandle>,
}

impl Forwarder {
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let state = Arc::new(Mutex::new(State { target: Some(target), connections: Vec::new() }));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state))).abort_handle();
        Self { port, state, accepting }
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Ends all connections and forwards new ones to this port. With `None` new ones are accepted
    /// and closed.
    pub fn switch(&self, target: Option<u16>) {
        let mut state = lock(&self.state);
        state.target = target;
        for connection in state.connections.drain(..) {
            connection.abort();
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.accepting.abort();
        self.switch(None);
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    while let Ok((client, _)) = listener.accept().await {
        // Under one lock: a connection precedes a switch, which ends it, or follows it.
        let mut locked = lock(&state);
        locked.connections.retain(|connection| !connection.is_finished());
        if let Some(port) = locked.target {
            locked.connections.push(tokio::spawn(forward(client, port)).abort_handle());
        }
    }
}

async fn forward(mut client: TcpStream, port: u16) {
    let Ok(mut database) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    drop((client.set_nodelay(true), database.set_nodelay(true)));
    // If one end cuts the connection, the other end sees the same.
    drop(copy_bidirectional(&mut client, &mut database).await);
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
