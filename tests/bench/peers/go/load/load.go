// Package load drives one peer and counts its jobs. docs/internals/peers.md describes the rows.
//
//	PEER ROW WORKERS SECONDS WARMUP
package load

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	batch = 100
	// A job of about 1.5 KB.
	padBytes = 740
	// Unfinished jobs at which producers wait.
	ahead = 256
	// Pause before each job of pickup: the least, and a random time besides.
	pause      = 10 * time.Millisecond
	spread     = 40 * time.Millisecond
	finishTime = time.Minute
)

var producers = map[string]int{"enqueue": 64, "batches": 16, "life": 64, "pickup": 8}

// Job is what a peer stores.
type Job struct {
	N   int    `json:"n"`
	Pad string `json:"pad"`
}

// Peer is a job queue. EnqueueMany returns after all jobs are stored. Producers are numbered.
type Peer interface {
	Enqueue(producer int, job Job) error
	EnqueueMany(producer int, jobs []Job) error
	// Work starts workers, which call Started in the handler, and Completed when the end of the job
	// is stored.
	Work(workers int, load *Load) error
	// Stored returns the number of waiting jobs.
	Stored() (int, error)
	// Close leaves nothing that would work on after the run.
	Close() error
}

type pickup struct {
	began   time.Time
	started chan struct{}
}

// Load counts the jobs of one run.
type Load struct {
	peer Peer
	row  string
	pad  string
	// One token for each job that may be unfinished in the row life.
	room chan struct{}

	mutex        sync.Mutex
	producing    bool
	issued       int
	acknowledged int
	ended        map[int]struct{}
	pickups      map[int]pickup
	// Zero outside the window.
	window  time.Time
	counted int
	millis  []float64
}

// Started notes that a worker has a job.
func (load *Load) Started(n int) {
	load.mutex.Lock()
	defer load.mutex.Unlock()
	waiting, found := load.pickups[n]
	if !found {
		return
	}
	delete(load.pickups, n)
	if !load.window.IsZero() && waiting.began.After(load.window) {
		load.millis = append(load.millis, float64(time.Since(waiting.began).Microseconds())/1000)
		load.counted++
	}
	close(waiting.started)
}

// Completed notes that the end of a job is stored.
func (load *Load) Completed(n int) {
	load.mutex.Lock()
	defer load.mutex.Unlock()
	if _, again := load.ended[n]; again {
		return
	}
	load.ended[n] = struct{}{}
	if load.row == "life" {
		load.count(1)
		<-load.room
	}
}

// The caller holds the lock.
func (load *Load) count(jobs int) {
	if !load.window.IsZero() {
		load.counted += jobs
	}
}

func (load *Load) isProducing() bool {
	load.mutex.Lock()
	defer load.mutex.Unlock()
	return load.producing
}

func (load *Load) job() Job {
	load.mutex.Lock()
	defer load.mutex.Unlock()
	load.issued++
	return Job{N: load.issued, Pad: load.pad}
}

func (load *Load) acknowledge(jobs int, counts bool) {
	load.mutex.Lock()
	defer load.mutex.Unlock()
	load.acknowledged += jobs
	if counts {
		load.count(jobs)
	}
}

func (load *Load) produce(producer int) error {
	for load.isProducing() {
		switch load.row {
		case "enqueue":
			if err := load.peer.Enqueue(producer, load.job()); err != nil {
				return err
			}
			load.acknowledge(1, true)
		case "batches":
			jobs := make([]Job, batch)
			for place := range jobs {
				jobs[place] = load.job()
			}
			if err := load.peer.EnqueueMany(producer, jobs); err != nil {
				return err
			}
			load.acknowledge(batch, true)
		case "life":
			load.room <- struct{}{}
			if !load.isProducing() {
				<-load.room
				return nil
			}
			if err := load.peer.Enqueue(producer, load.job()); err != nil {
				return err
			}
			load.acknowledge(1, false)
		case "pickup":
			time.Sleep(pause + time.Duration(mathrand.Int64N(int64(spread))))
			job, started := load.job(), make(chan struct{})
			load.mutex.Lock()
			load.pickups[job.N] = pickup{began: time.Now(), started: started}
			load.mutex.Unlock()
			if err := load.peer.Enqueue(producer, job); err != nil {
				return err
			}
			load.acknowledge(1, false)
			<-started
		}
	}
	return nil
}

// lost returns the number of acknowledged jobs that were lost.
func (load *Load) lost(workers int) (int, error) {
	if workers == 0 {
		stored, err := load.peer.Stored()
		return max(0, load.acknowledged-stored), err
	}
	for deadline := time.Now().Add(finishTime); ; time.Sleep(10 * time.Millisecond) {
		load.mutex.Lock()
		left := load.acknowledged - len(load.ended)
		load.mutex.Unlock()
		if left <= 0 || time.Now().After(deadline) {
			return max(0, left), nil
		}
	}
}

// quantile returns the smallest value not below this share of the sorted values.
func quantile(sorted []float64, share float64) any {
	if len(sorted) == 0 {
		return nil
	}
	return sorted[max(1, int(math.Ceil(float64(len(sorted))*share)))-1]
}

func tell(line map[string]any) {
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		panic(err)
	}
}

// Measure runs the row that the arguments name, and exits.
func Measure(open func(producers int) (Peer, error)) {
	if err := measure(open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func measure(open func(producers int) (Peer, error)) error {
	if len(os.Args) != 5 {
		return fmt.Errorf("usage: %s ROW WORKERS SECONDS WARMUP", os.Args[0])
	}
	var numbers [3]int
	for place := range numbers {
		number, err := strconv.Atoi(os.Args[place+2])
		if err != nil {
			return err
		}
		numbers[place] = number
	}
	row, workers := os.Args[1], numbers[0]
	seconds, warmup := time.Duration(numbers[1])*time.Second, time.Duration(numbers[2])*time.Second
	pad := make([]byte, padBytes)
	if _, err := rand.Read(pad); err != nil {
		return err
	}
	peer, err := open(producers[row])
	if err != nil {
		return err
	}
	load := &Load{
		peer: peer, row: row, pad: hex.EncodeToString(pad), room: make(chan struct{}, ahead), producing: true,
		ended: map[int]struct{}{}, pickups: map[int]pickup{},
	}
	if workers > 0 {
		if err := peer.Work(workers, load); err != nil {
			return err
		}
	}
	ended := make(chan error, producers[row])
	for producer := range producers[row] {
		go func() { ended <- load.produce(producer) }()
	}
	// A producer ends early only with an error.
	select {
	case err := <-ended:
		return err
	case <-time.After(warmup):
	}
	load.mutex.Lock()
	load.window = time.Now()
	load.mutex.Unlock()
	tell(map[string]any{"event": "begin"})
	select {
	case err := <-ended:
		return err
	case <-time.After(seconds):
	}
	load.mutex.Lock()
	jobs, elapsed := load.counted, time.Since(load.window)
	load.window, load.producing = time.Time{}, false
	load.mutex.Unlock()
	tell(map[string]any{"event": "end", "jobs": jobs, "seconds": elapsed.Seconds()})
	for range producers[row] {
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
		case <-time.After(finishTime):
			return fmt.Errorf("a producer did not end within %s", finishTime)
		}
	}
	lost, err := load.lost(workers)
	if err != nil {
		return err
	}
	slices.Sort(load.millis)
	tell(map[string]any{
		"event": "result", "lost": lost, "p50": quantile(load.millis, 0.5), "p99": quantile(load.millis, 0.99),
	})
	return peer.Close()
}
