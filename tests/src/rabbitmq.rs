//! A RabbitMQ that tests kill and start again.

use std::fs::{File, create_dir, write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::postgres::free_port;

const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const START_MAX: Duration = Duration::from_secs(120);

/// A broker with its data. Dropping it ends its processes.
pub struct RabbitMq {
    folder: PathBuf,
    port: u16,
    mapper: Child,
    mapper_port: u16,
    erlang_port: u16,
    broker: Option<Child>,
}

impl RabbitMq {
    /// # Panics
    /// If it does not start; `scripts/install-service` installs it.
    pub async fn start(folder: &Path) -> Self {
        let folder = folder.join("rabbitmq");
        create_dir(&folder).expect("the folder is new");
        let (port, mapper_port, erlang_port) = (free_port(), free_port(), free_port());
        let settings = format!("listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users.guest = true\n");
        write(folder.join("rabbitmq.conf"), settings).expect("it is written");
        write(folder.join("plugins"), "").expect("it is written");
        // Otherwise the broker starts one, which nothing ends.
        let mapper = Command::new("epmd")
            .args(["-address", "127.0.0.1", "-port", &mapper_port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("scripts/install-service has installed Erlang");
        let mut rabbit = Self { folder, port, mapper, mapper_port, erlang_port, broker: None };
        rabbit.start_again().await;
        rabbit
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Starts it with its old data, and waits until it accepts connections.
    pub async fn start_again(&mut self) {
        let output = File::create(self.folder.join("output")).expect("it is created");
        let data = |name: &str| self.folder.join(name);
        let child = Command::new(PROGRAM)
            .env("HOME", &self.folder)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", self.mapper_port.to_string())
            .env("RABBITMQ_NODENAME", format!("tenure-{}@localhost", self.port))
            .env("RABBITMQ_DIST_PORT", self.erlang_port.to_string())
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            .env("RABBITMQ_CONFIG_FILE", data("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", data("plugins"))
            .env("RABBITMQ_MNESIA_BASE", data("mnesia"))
            .env("RABBITMQ_LOG_BASE", data("log"))
            .env("RABBITMQ_PID_FILE", data("pid"))
            .stdout(output.try_clone().expect("it is a file"))
            .stderr(output)
            .spawn()
            .expect("scripts/install-service has installed it");
        self.broker = Some(child);
        let until = Instant::now() + START_MAX;
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert!(Instant::now() < until, "RabbitMQ does not start: {}", self.output());
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    /// Kills the broker, as a crash would.
    pub fn kill(&mut self) {
        let Some(mut script) = self.broker.take() else { return };
        // The script starts Erlang as its child or becomes it.
        let pid = std::fs::read_to_string(self.folder.join("pid")).ok().and_then(|pid| pid.trim().parse().ok());
        if let Some(pid) = pid {
            let _gone = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let _ended = script.kill();
        let _ended = script.wait();
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        self.kill();
        let _ended = self.mapper.kill();
        let _ended = self.mapper.wait();
    }
}
