//! RabbitMQ for comparison: a durable quorum queue with persistent messages of the size of a
//! definition, which are confirmed, consumed and acknowledged.
//!
//! A lane is a channel. It publishes as many messages as it then consumes: one, or a window that is
//! confirmed and acknowledged together. Its prefetch equals its window, so that lanes hold no
//! messages of others.

use std::rc::Rc;

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer};
use tokio::time::Instant;

use super::BenchError;
use super::run::Run;
use tenure_driver::random::Random;

pub(crate) const STEPS: &[&str] = &["publish", "consume"];
/// Counterpart of a task's payload digits and the rest of its definition.
const MESSAGE_DIGITS: usize = 1_500;
/// Lanes that share a connection, as RabbitMQ recommends.
const CHANNELS_PER_CONNECTION: usize = 16;
const PERSISTENT: u8 = 2;

pub(crate) struct Lane {
    run: Rc<Run>,
    /// Closes when its last lane is dropped.
    _connection: Rc<Connection>,
    channel: Channel,
    consumer: Consumer,
    window: usize,
    message: String,
}

pub(crate) async fn prepare(run: &Rc<Run>, window: usize) -> Result<Vec<Lane>, BenchError> {
    let mut lanes = Vec::with_capacity(run.connections());
    while lanes.len() < run.connections() {
        let connection = Rc::new(connect(run).await?);
        let more = CHANNELS_PER_CONNECTION.min(run.connections() - lanes.len());
        for _ in 0..more {
            lanes.push(Lane::open(run, &connection, window, lanes.len()).await?);
        }
    }
    Ok(lanes)
}

pub(crate) async fn remove_queue(run: &Run) -> Result<(), BenchError> {
    let channel = connect(run).await?.create_channel().await?;
    channel.queue_delete(run.queue().into(), QueueDeleteOptions::default()).await?;
    Ok(())
}

async fn connect(run: &Run) -> Result<Connection, BenchError> {
    Ok(Connection::connect(run.service().url(), ConnectionProperties::default()).await?)
}

impl Lane {
    async fn open(
        run: &Rc<Run>,
        connection: &Rc<Connection>,
        window: usize,
        number: usize,
    ) -> Result<Self, BenchError> {
        let channel = connection.create_channel().await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(run.queue().into(), durable, arguments).await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let prefetch = u16::try_from(window).unwrap_or(u16::MAX);
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let name = format!("bench-{number}");
        let options = BasicConsumeOptions::default();
        let consumer =
            channel.basic_consume(run.queue().into(), name.as_str().into(), options, FieldTable::default()).await?;
        let mut message = String::with_capacity(MESSAGE_DIGITS);
        Random::fork(run.seed(), number as u64).push_hex(&mut message, MESSAGE_DIGITS);
        Ok(Self { run: Rc::clone(run), _connection: Rc::clone(connection), channel, consumer, window, message })
    }

    pub(crate) async fn drive(mut self) -> Result<(), BenchError> {
        while self.run.is_open() {
            self.turn().await?;
        }
        Ok(())
    }

    async fn turn(&mut self) -> Result<(), BenchError> {
        let began = Instant::now();
        self.publish().await?;
        let published = Instant::now();
        let mut last: Option<Delivery> = None;
        for _ in 0..self.window {
            let delivery = self.consumer.next().await.ok_or(BenchError::Generator("a consumer ended".to_owned()))?;
            last = Some(delivery?);
        }
        if let Some(delivery) = last {
            delivery.ack(BasicAckOptions { multiple: self.window > 1 }).await?;
        }
        let consumed = Instant::now();
        for (step, began, ended) in [(0, began, published), (1, published, consumed)] {
            if self.run.counts(began, ended) {
                self.run.figures().record(step, ended - began);
            }
        }
        if self.run.counts(consumed, consumed) {
            self.run.figures().tasks += self.window as u64;
        }
        Ok(())
    }

    /// Publishes a window of messages and waits for all confirmations, which a quorum queue sends
    /// after the flush.
    async fn publish(&self) -> Result<(), BenchError> {
        let mut confirmations = Vec::with_capacity(self.window);
        for _ in 0..self.window {
            let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
            let (queue, message) = (self.run.queue().into(), self.message.as_bytes());
            let options = BasicPublishOptions::default();
            confirmations.push(self.channel.basic_publish("".into(), queue, options, message, properties).await?);
        }
        for confirmation in try_join_all(confirmations).await? {
            if !matches!(confirmation, Confirmation::Ack(None)) {
                return Err(BenchError::Generator(format!("a message was not confirmed: {confirmation:?}")));
            }
        }
        Ok(())
    }
}
