package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// maxAhead bounds the events that were read and are not behind the cursor,
// however small: what one partition that stands still can keep the others from
// having recorded, and so what is published a second time after a crash then.
const maxAhead = 100_000

// pairAfter is how far the sequence may be ahead of the low bound before the reader
// makes a pair for it: each poll walks over the rows between, some hundred times a
// second under a steady load.
const pairAfter = 250

// refreshAfter is how far it may be ahead of the newest stored pair's L before a
// checkpoint is made for the pair's sake: the first poll of a new session walks over
// the rows between, and partitions are kept for them.
const refreshAfter = 10_000

// session is the relay from one connection to the next. Everything it knows it
// has read from the database on connections that have not broken since; when
// one breaks it ends, and another begins from what is stored. After a crash
// PostgreSQL gives transaction ids out a second time, and a cursor that was
// kept in memory would count them as seen.
type session struct {
	cfg  Config
	log  *slog.Logger
	sql  *statements
	pub  Publisher
	pool *pgxpool.Pool // for what needs no session of its own
	// own are the leases that it works under, in the order of keys; shards the
	// same as a set. Both are fixed: with others another session begins.
	own    []fencing.Position
	shards shardSet

	reader *reader
	writer *pgx.Conn

	// soft ends reading, hard ends everything.
	soft, hard             context.Context
	cancelSoft, cancelHard context.CancelFunc
	background, lanes      sync.WaitGroup

	beside *beside
	wake   chan struct{} // the reading goroutine: there may be something to do
	// closing is closed when the lanes have only what is to be sent yet.
	closing chan struct{}
	due     chan struct{} // the checkpointing one

	outages outages

	mu        sync.Mutex
	err       error // why it ends, if not by a clean stop
	ending    bool  // no goroutine starts any more
	closed    bool  // as the channel closing
	main      flow
	window    cursor // the newest window that the main flow has opened in this database session
	bound     bound  // holds for every snapshot that is taken from now on
	storedLow int64  // L of the newest pair that was stored
	stale     bool   // the pair should be made anew
	topics    map[string]*topic
	held      map[streamKey]*hold
	look      bool // a held stream may have to be resumed
	mainsTurn bool // before further pages of held streams; only the reading goroutine's
	forks     []*fork
	moved     bool      // groups of shards have become one: to be stored
	high      int64     // the sequence's value at the newest snapshot
	told      int64     // the same, when the cursors were stored last
	toldAt    time.Time // and when that was
	stored    [][]int64 // generations of the last checkpoints, the newest first
	inFlight  int       // weight of rows on their way
	starved   bool      // the reader waits for room
	acks      int       // acknowledged since the last checkpoint
	answers   int64     // acknowledged batches of the session
}

// streamKey names a stream.
type streamKey struct{ topic, key string }

// openSession connects and loads. The error is the database's or a *PoolerError.
func openSession(ctx context.Context, pool *pgxpool.Pool, pub Publisher, cfg Config, sql *statements, own []fencing.Position) (_ *session, err error) {
	s := &session{
		cfg: cfg, log: cfg.Logger, sql: sql, pub: pub, pool: pool, own: own,
		wake: make(chan struct{}, 1), due: make(chan struct{}, 1), closing: make(chan struct{}),
		topics: map[string]*topic{}, held: map[streamKey]*hold{},
	}
	for _, pos := range own {
		if n, ok := shardOf(pos.Key); ok {
			s.shards = s.shards.with(n)
		}
	}
	s.outages.s = s
	conn, err := dial(ctx, pool, readerSettings)
	if err != nil {
		return nil, err
	}
	s.reader = &reader{conn: conn, sql: sql, rows: cfg.PageSize, bytes: cfg.PageBytes}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.writer, err = dial(ctx, pool, writerSettings); err != nil {
		return nil, err
	}
	if s.reader.pid, err = pinned(ctx, conn, s.writer); err != nil {
		return nil, err
	}
	if err = oneServer(ctx, conn, s.writer); err != nil {
		return nil, err
	}
	return s, s.load(ctx)
}

// leaseOf is the lease under which a key's stream is published.
func (s *session) leaseOf(key string) fencing.Position {
	for _, pos := range s.own {
		if pos.Key == ShardKey(outbox.Shard(key)) {
			return pos
		}
	}
	return s.own[0] // a row that somebody has put into the wrong shard
}

func (s *session) close() {
	hangUp(s.reader.conn)
	if s.writer != nil {
		hangUp(s.writer)
	}
}

// run publishes until ctx ends, which is a clean stop and gives nil, or
// something breaks: one of the leases, a connection, the producer.
func (s *session) run(ctx context.Context, leases []*fencing.Lease) error {
	defer s.close()
	s.soft, s.cancelSoft = context.WithCancel(ctx)
	s.hard, s.cancelHard = context.WithCancel(context.WithoutCancel(ctx))
	defer s.cancelHard()
	for _, l := range leases {
		defer context.AfterFunc(l.Context(), func() { s.fail(context.Cause(l.Context())) })()
	}

	for _, work := range []func() error{s.read, s.checkpoints, s.watchTopics} {
		s.background.Add(1)
		go func() {
			defer s.background.Done()
			if err := work(); err != nil {
				s.fail(err)
			}
		}()
	}
	s.askAgain()
	<-s.soft.Done()
	grace := time.NewTimer(s.cfg.Grace)
	defer grace.Stop()
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	s.wait(&s.background, grace, "a checkpoint")
	if s.failed() == nil {
		s.finish(grace)
	}
	s.cancelHard()
	s.lanes.Wait()
	s.outages.end()
	return s.failed()
}

// finish waits for the requests in flight, and for what is queued in front of
// what was sent already, but for nothing else, and stores the cursors.
func (s *session) finish(grace *time.Timer) {
	s.closeLanes()
	s.wait(&s.lanes, grace, "requests in flight")
	s.cancelHard()
	if s.failed() != nil {
		return // the lease ended meanwhile
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.checkpoint(ctx, true); err != nil {
		s.log.Warn("last checkpoint failed; what was published since the one before will be published again", "error", err)
	}
}

// wait waits for goroutines until the grace time is over, and then cuts off what
// they wait for. A checkpoint is among that: whoever locks what it has to lock, or
// a server that doesn't answer, would keep a stop waiting for as long.
func (s *session) wait(all *sync.WaitGroup, grace *time.Timer, what string) {
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-s.hard.Done():
	case <-grace.C:
		s.log.Warn("grace time is over; what is not finished is abandoned and will be published again", "unfinished", what, "grace", s.cfg.Grace)
		s.cancelHard()
	}
	<-done
}

// fail ends the session for a reason. The first reason counts.
func (s *session) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	s.cancelSoft()
	s.cancelHard()
}

func (s *session) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// errCrash is what a test's crash ends a session with.
var errCrash = errors.New("relay: crashed by a test")

func (s *session) crash(point string) error {
	if s.cfg.signals.crashAt(point) {
		return errCrash
	}
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
