// River, with short pauses between fetches and between notifications. Its default of 100 ms limits
// the rate of no-op jobs, and leaves all but the first insert of a pause to polling.
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"tenure.test/peers/load"
)

const (
	connections   = 40
	fetchCooldown = 2 * time.Millisecond
	// Events of ends that are not read yet. A full channel would drop more.
	eventsMax = 1_000_000
)

type args struct{ load.Job }

func (args) Kind() string { return "noop" }

type worker struct {
	river.WorkerDefaults[args]
	load *load.Load
}

func (worker *worker) Work(_ context.Context, job *river.Job[args]) error {
	worker.load.Started(job.Args.N)
	return nil
}

type peer struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func openPool() (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	return pgxpool.NewWithConfig(context.Background(), config)
}

func open(int) (load.Peer, error) {
	pool, err := openPool()
	if err != nil {
		return nil, err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(context.Background(), rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{FetchCooldown: fetchCooldown})
	return &peer{pool, client}, err
}

func (peer *peer) Enqueue(_ int, job load.Job) error {
	_, err := peer.client.Insert(context.Background(), args{job}, nil)
	return err
}

func (peer *peer) EnqueueMany(_ int, jobs []load.Job) error {
	params := make([]river.InsertManyParams, len(jobs))
	for place, job := range jobs {
		params[place].Args = args{job}
	}
	_, err := peer.client.InsertManyFast(context.Background(), params)
	return err
}

func (peer *peer) Work(workers int, measured *load.Load) error {
	pool, err := openPool()
	if err != nil {
		return err
	}
	registry := river.NewWorkers()
	river.AddWorker(registry, &worker{load: measured})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown: fetchCooldown,
		Logger:        slog.New(slog.DiscardHandler),
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Workers:       registry,
	})
	if err != nil {
		return err
	}
	events, _ := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: eventsMax, Kinds: []river.EventKind{river.EventKindJobCompleted},
	})
	go func() {
		for event := range events {
			var done args
			if json.Unmarshal(event.Job.EncodedArgs, &done) == nil {
				measured.Completed(done.N)
			}
		}
	}()
	return client.Start(context.Background())
}

func (peer *peer) Stored() (int, error) {
	var stored int
	query := "SELECT count(*) FROM river_job WHERE state = 'available'"
	return stored, peer.pool.QueryRow(context.Background(), query).Scan(&stored)
}

// The database is removed after the run.
func (peer *peer) Close() error { return nil }

func main() { load.Measure(open) }
