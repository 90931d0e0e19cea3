//! Publishes events to an AMQP 0-9-1 broker with publisher confirms.
//!
//! Clients choose the brokers among the addresses that the operator has listed: lapin trusts its
//! broker. It parses nested tables recursively, so a hostile broker could overflow its stack, which
//! aborts the process, and it keeps returned messages of any size. As for webhooks, each address is
//! checked when it is connected to, and TLS verifies the name.
//!
//! A connection has a thread of its own, which reads its socket: closing the socket ends the thread,
//! also if the broker is silent.

use std::collections::BTreeSet;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::tcp::{AsyncTcpStream, TLSConfig};
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind, runtime};
use reqwest::Url;
use tenure_domain::delivery::address::DeliverTo;
use tenure_domain::delivery::message::Message;
use tenure_domain::delivery::publication::Publication;
use tenure_domain::delivery::{ANSWER_MAX, URL_BYTES_MAX};
use tokio::net::lookup_host;
use tokio::time::timeout;
use url::Host;

use super::webhook::literal_address;
use crate::http_client::{ERROR_CHARS_MAX, provide_cryptography};

/// Bounds the buffers of a connection, 32 frames in each direction, whatever the broker offers. The
/// header `CC` of an event, up to 64 routes, must fit in one.
const FRAME_BYTES_MAX: u32 = 32 << 10;
const HEARTBEAT_SECONDS: u16 = 10;
const PERSISTENT: u8 = 2;
const NAME_BYTES_MAX: usize = 255;
const NOT_LISTED: &str = "must lead to an address that the operator has listed with --deliver-to";

#[derive(Debug, thiserror::Error)]
#[error("the host has no address that the operator has listed with --deliver-to")]
struct NotListed;

/// A checked URL. It has no Debug, which would show the password.
pub(super) struct Broker {
    /// Without user and password.
    pub(super) shown: String,
    /// As given.
    pub(super) url: String,
}

/// Checks the URL of a broker. Refusals complete "the URL".
pub(super) fn check(text: &str, deliver_to: &DeliverTo) -> Result<Broker, String> {
    const EXAMPLE: &str = "must be a URL such as amqps://user:password@broker.example/vhost";
    let mut url = Url::parse(text).map_err(|error| format!("{EXAMPLE} ({error})"))?;
    if text.len() > URL_BYTES_MAX || url.as_str().len() > URL_BYTES_MAX {
        return Err(format!("must have at most {URL_BYTES_MAX} bytes"));
    }
    if !matches!(url.scheme(), "amqp" | "amqps") {
        return Err("must begin with amqps:// or amqp://".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must end with the virtual host".to_owned());
    }
    // Otherwise a part of an unencoded password could be taken for the host or the path, and shown.
    if url.path().get(1..).is_some_and(|vhost| vhost.contains(['/', '@'])) {
        return Err("must have `/` and `@` of the password and of the virtual host as %2F and %40".to_owned());
    }
    let is_listed =
        literal_address(url.host_str().unwrap_or_default())?.is_none_or(|address| deliver_to.lists(address));
    if deliver_to.is_empty() || !is_listed {
        return Err(NOT_LISTED.to_owned());
    }
    parse(text)?;
    // Both fail only without a host.
    let _without = (url.set_username(""), url.set_password(None));
    Ok(Broker { shown: url.into(), url: text.to_owned() })
}

/// Parses a checked URL: an error for another one may repeat its password.
fn parse(text: &str) -> Result<AMQPUri, String> {
    let mut uri: AMQPUri = text.parse().map_err(|error| format!("must be one of AMQP ({error})"))?;
    // The parser of lapin replaces IPv6 addresses with localhost.
    if let Ok(url) = Url::parse(text)
        && let Some(Host::Ipv6(address)) = url.host()
    {
        uri.authority.host = address.to_string();
    }
    uri.query.frame_max = Some(FRAME_BYTES_MAX);
    uri.query.heartbeat = Some(HEARTBEAT_SECONDS);
    Ok(uri)
}

/// Publishes the events of a subscription. It keeps its connection.
pub(super) struct Publisher {
    url: String,
    deliver_to: Arc<DeliverTo>,
    link: Option<Link>,
}

impl Publisher {
    pub(super) fn new(url: String, deliver_to: Arc<DeliverTo>) -> Self {
        Self { url, deliver_to, link: None }
    }

    /// Returns once the broker has confirmed all, or says why it has not.
    pub(super) async fn publish(&mut self, publications: &[Publication]) -> Result<(), String> {
        let kept = self.link.take().filter(|link| link.connection.status().connected());
        let attempt = async {
            let mut link = match kept {
                Some(link) => link,
                None => Link::open(&self.url, &self.deliver_to).await?,
            };
            link.publish(publications).await?;
            Ok(link)
        };
        self.link = Some(in_time(attempt).await?);
        Ok(())
    }
}

/// Connects and publishes a message to no queue, which the broker confirms.
pub(super) async fn test(url: &str, message: &Message, deliver_to: &Arc<DeliverTo>) -> Result<(), String> {
    in_time(async {
        let link = Link::open(url, deliver_to).await?;
        let properties = BasicProperties::default().with_message_id(message.id.as_str().into());
        link.send("", "tenure.test", message.body.as_bytes(), properties).await?.wait().await
    })
    .await
}

async fn in_time<T>(attempt: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    match timeout(ANSWER_MAX, attempt).await {
        Ok(result) => result,
        Err(_) => Err(format!("the broker did not answer within {} seconds", ANSWER_MAX.as_secs())),
    }
}

struct Link {
    channel: Channel,
    connection: Connection,
    /// Exchanges that this connection has declared.
    declared: BTreeSet<String>,
    _socket: Socket,
}

impl Link {
    async fn open(url: &str, deliver_to: &Arc<DeliverTo>) -> Result<Self, String> {
        let checked = check(url, deliver_to).map_err(|why| format!("the URL {why}"))?;
        let uri = parse(&checked.url).map_err(|why| format!("the URL {why}"))?;
        provide_cryptography();
        let (connection, socket) = connect(uri, deliver_to).await.map_err(|error| describe(&error))?;
        let channel = connection.create_channel().await.map_err(|error| describe(&error))?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(|error| describe(&error))?;
        Ok(Self { channel, connection, declared: BTreeSet::new(), _socket: socket })
    }

    async fn publish(&mut self, publications: &[Publication]) -> Result<(), String> {
        let mut confirms = Vec::with_capacity(publications.len());
        for publication in publications {
            self.declare(&publication.exchange).await?;
            let Publication { exchange, routing_key, body, .. } = publication;
            confirms.push(self.send(exchange, routing_key, body.as_bytes(), properties(publication)).await?);
        }
        for confirm in confirms {
            confirm.wait().await?;
        }
        Ok(())
    }

    async fn declare(&mut self, exchange: &str) -> Result<(), String> {
        if self.declared.contains(exchange) {
            return Ok(());
        }
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared =
            self.channel.exchange_declare(short(exchange)?, ExchangeKind::Topic, options, FieldTable::default());
        declared.await.map_err(|error| describe(&error))?;
        self.declared.insert(exchange.to_owned());
        Ok(())
    }

    async fn send(
        &self,
        exchange: &str,
        routing_key: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<Confirm, String> {
        let (exchange, routing_key) = (short(exchange)?, short(routing_key)?);
        let options = BasicPublishOptions::default();
        let published = self.channel.basic_publish(exchange, routing_key, options, body, properties);
        published.await.map(Confirm).map_err(|error| describe(&error))
    }
}

struct Confirm(lapin::PublisherConfirm);

impl Confirm {
    async fn wait(self) -> Result<(), String> {
        match self.0.await.map_err(|error| describe(&error))? {
            Confirmation::Ack(_) => Ok(()),
            Confirmation::Nack(_) | Confirmation::NotRequested => Err("the broker refused a message".to_owned()),
        }
    }
}

fn short(name: &str) -> Result<ShortString, String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("an exchange or routing key has more than {NAME_BYTES_MAX} bytes, the limit of AMQP"));
    }
    Ok(name.into())
}

fn properties(publication: &Publication) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("position".into(), AMQPValue::LongLongInt(publication.position));
    if let Some(unique) = &publication.unique {
        headers.insert("unique".into(), AMQPValue::LongString(unique.as_str().into()));
    }
    if !publication.cc.is_empty() {
        let keys: Vec<AMQPValue> =
            publication.cc.iter().map(|key| AMQPValue::LongString(key.as_str().into())).collect();
        headers.insert("CC".into(), AMQPValue::FieldArray(FieldArray::from(keys)));
    }
    BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(PERSISTENT)
        .with_message_id(publication.id.as_str().into())
        .with_headers(headers)
}

/// A second handle of a connection's socket, which closes it when it is dropped.
struct Socket(TcpStream);

impl Drop for Socket {
    fn drop(&mut self) {
        let _closed = self.0.shutdown(Shutdown::Both);
    }
}

/// Connects before lapin begins: for each connection that it cannot make itself, a task of lapin
/// would stay for ever.
async fn connect(uri: AMQPUri, deliver_to: &DeliverTo) -> lapin::Result<(Connection, Socket)> {
    let runtime = runtime::default_runtime()?;
    let (host, port) = (uri.authority.host.as_str(), uri.authority.port);
    let addresses = resolve(host, port, deliver_to).await?;
    let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
    let AsyncTcpStream::Plain(plain) = &stream else {
        return Err(io::Error::from(io::ErrorKind::Unsupported).into());
    };
    let socket = Socket(plain.get_ref().as_fd().try_clone_to_owned()?.into());
    let stream = match uri.scheme {
        AMQPScheme::AMQP => stream,
        AMQPScheme::AMQPS => stream.into_tls(host, TLSConfig::default()).await?,
    };
    let kept = Mutex::new(Some(stream));
    // Inline, so that the compiler knows the type of the stream.
    let connection = Connection::connector(
        uri,
        runtime,
        async move |_uri: AMQPUri, _runtime| {
            let stream = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
            stream.ok_or_else(|| lapin::Error::from(io::Error::from(io::ErrorKind::NotConnected)))
        },
        ConnectionProperties::default(),
    )
    .await?;
    Ok((connection, socket))
}

async fn resolve(host: &str, port: u16, deliver_to: &DeliverTo) -> io::Result<Vec<SocketAddr>> {
    let found = lookup_host((host, port)).await?;
    let listed: Vec<SocketAddr> = found.filter(|address| deliver_to.lists(address.ip())).collect();
    if listed.is_empty() { Err(io::Error::other(NotListed)) } else { Ok(listed) }
}

fn describe(error: &lapin::Error) -> String {
    // The broker may have chosen the text.
    error.to_string().chars().filter(|char| !char.is_control()).take(ERROR_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use tenure_domain::delivery::address::Cidr;

    use super::*;

    fn listed(blocks: &[&str]) -> DeliverTo {
        DeliverTo::new(blocks.iter().map(|block| block.parse::<Cidr>().unwrap()).collect())
    }

    #[test]
    fn url_leads_to_a_listed_address() {
        let public = listed(&["1.1.1.0/24", "2606:4700::/32"]);
        let checked = check("amqps://user:p%40ss@broker.example:5673/a", &public).unwrap();
        assert_eq!(checked.shown, "amqps://broker.example:5673/a");
        for url in ["amqps://broker.example", "amqps://1.1.1.1/%2f", "amqps://[2606:4700::1111]/"] {
            assert!(check(url, &public).is_ok() && check(url, &listed(&[])).is_err(), "{url}");
        }
        for url in [
            "",
            "broker.example",
            "https://broker.example/",
            "amqps://",
            "amqps:///vhost",
            "amqps://broker.example/a/b",
            "amqps://broker.example/?heartbeat=0",
            "amqps://broker.example/#a",
            "amqps://user:12/secret@broker.example/a",
            "amqps://user:12/secret@broker.example",
            "amqps://127.0.0.1/",
            "amqps://127.1/",
            "amqps://2130706433/",
            "amqps://0x7f000001/",
            "amqps://[::1]/",
            "amqps://[::ffff:127.0.0.1]/",
            "amqps://169.254.169.254/",
            &format!("amqps://broker.example/{}", "x".repeat(URL_BYTES_MAX)),
        ] {
            assert!(check(url, &public).is_err(), "{url}");
        }
        let home = listed(&["127.0.0.0/8"]);
        for url in ["amqp://guest:guest@127.0.0.1:5672/%2f", "amqps://127.1/", "amqp://localhost"] {
            assert!(check(url, &home).is_ok(), "{url}");
        }
        for url in ["amqp://10.0.0.1/", "amqp://1.1.1.1/", "amqps://1.1.1.1/"] {
            assert!(check(url, &home).is_err(), "{url}");
        }
    }

    #[test]
    fn refused_url_does_not_repeat_its_password() {
        let home = listed(&["127.0.0.0/8"]);
        for url in [
            "amqps:user:secret@127.0.0.1",
            "amqp:/user:secret@127.0.0.1",
            "amqps://user:secret@10.0.0.1/",
            "amqps://user:secret@127.0.0.1/?a",
            "amqps://user:12/secret@127.0.0.1/",
            "amqps://user:a/secret@127.0.0.1/",
            "amqps://user:secret%ff@127.0.0.1/",
        ] {
            assert!(check(url, &home).is_err_and(|why| !why.contains("secret")), "{url}");
        }
    }

    #[test]
    fn ipv6_address_is_connected_to() {
        for (url, host) in [
            ("amqps://user:secret@[2606:4700::1111]:5673/", "2606:4700::1111"),
            ("amqps://1.1.1.1/", "1.1.1.1"),
            ("amqps://broker.example/", "broker.example"),
        ] {
            assert_eq!(parse(url).unwrap().authority.host, host);
        }
    }

    #[test]
    fn text_of_a_broker_is_shown_without_control_characters() {
        let error = lapin::Error::from(io::Error::other("\u{1b}[31mno\0\r\nlogin"));
        assert_eq!(describe(&error), "IO error: [31mnologin");
        assert_eq!(describe(&io::Error::other("x".repeat(10_000)).into()).len(), ERROR_CHARS_MAX);
    }

    #[tokio::test]
    async fn failed_connection_leaves_no_task() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let home = Arc::new(listed(&["127.0.0.0/8"]));
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        for _ in 0..3 {
            assert!(Link::open(&format!("amqp://127.0.0.1:{port}/"), &home).await.is_err());
        }
        assert_eq!(tasks(), before);
    }

    #[tokio::test]
    async fn address_is_checked_at_the_connection() {
        for blocks in [&[][..], &["10.0.0.0/8"][..]] {
            for host in ["localhost", "127.0.0.1", "127.1", "::1", "::ffff:127.0.0.1"] {
                assert!(resolve(host, 5672, &listed(blocks)).await.is_err(), "{host}");
            }
        }
        let found = resolve("localhost", 5672, &listed(&["127.0.0.0/8"])).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|address| address.ip().is_loopback()));
    }
}
