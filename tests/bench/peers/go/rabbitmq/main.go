// RabbitMQ: a durable quorum queue with persistent messages, publisher confirms, and consumers that
// prefetch one message and acknowledge it.
package main

import (
	"encoding/json"
	"errors"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"

	"tenure.test/peers/load"
)

const (
	queue = "noop"
	// As RabbitMQ recommends, few connections with some channels each.
	channelsPerConnection = 16
)

type peer struct {
	// One for each producer.
	channels []*amqp.Channel
}

// openChannels opens channels that share connections.
func openChannels(number int) ([]*amqp.Channel, error) {
	var connection *amqp.Connection
	channels := make([]*amqp.Channel, number)
	for place := range channels {
		if place%channelsPerConnection == 0 {
			opened, err := amqp.Dial(os.Getenv("AMQP_URL"))
			if err != nil {
				return nil, err
			}
			connection = opened
		}
		channel, err := connection.Channel()
		if err != nil {
			return nil, err
		}
		channels[place] = channel
	}
	return channels, nil
}

func open(producers int) (load.Peer, error) {
	channels, err := openChannels(producers)
	if err != nil {
		return nil, err
	}
	if _, err := channels[0].QueueDelete(queue, false, false, false); err != nil {
		return nil, err
	}
	quorum := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	if _, err := channels[0].QueueDeclare(queue, true, false, false, false, quorum); err != nil {
		return nil, err
	}
	for _, channel := range channels {
		if err := channel.Confirm(false); err != nil {
			return nil, err
		}
	}
	return &peer{channels}, nil
}

func (peer *peer) Enqueue(producer int, job load.Job) error {
	return peer.EnqueueMany(producer, []load.Job{job})
}

func (peer *peer) EnqueueMany(producer int, jobs []load.Job) error {
	confirmations := make([]*amqp.DeferredConfirmation, len(jobs))
	for place, job := range jobs {
		body, err := json.Marshal(job)
		if err != nil {
			return err
		}
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
		confirmations[place], err = peer.channels[producer].PublishWithDeferredConfirm("", queue, false, false, message)
		if err != nil {
			return err
		}
	}
	for _, confirmation := range confirmations {
		if !confirmation.Wait() {
			return errors.New("a message was not confirmed")
		}
	}
	return nil
}

func (peer *peer) Work(workers int, measured *load.Load) error {
	channels, err := openChannels(workers)
	if err != nil {
		return err
	}
	for _, channel := range channels {
		if err := channel.Qos(1, 0, false); err != nil {
			return err
		}
		deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		go func() {
			for delivery := range deliveries {
				var job load.Job
				if json.Unmarshal(delivery.Body, &job) != nil {
					continue
				}
				measured.Started(job.N)
				if delivery.Ack(false) == nil {
					measured.Completed(job.N)
				}
			}
		}()
	}
	return nil
}

func (peer *peer) Stored() (int, error) {
	declared, err := peer.channels[0].QueueDeclarePassive(queue, true, false, false, false, nil)
	return declared.Messages, err
}

func (peer *peer) Close() error {
	_, err := peer.channels[0].QueueDelete(queue, false, false, false)
	return err
}

func main() { load.Measure(open) }
