package fencingtest_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/fencing/fencingtest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var (
	ctx     = context.Background()
	ttl     = fencing.LeaseConfig{TTL: 5 * time.Minute, GateTimeout: 500 * time.Millisecond, Wait: 10 * time.Second}
	content = fencing.Content{Step: "the step", Bytes: []byte("x")}
)

func nothing(context.Context, fencing.Tx) error { return nil }
func empty(*fencing.Batch) error                { return nil }

// stage is a database with a worker on a watched, lossy connection, and another.
type stage struct {
	testing.TB
	admin         *pgxpool.Pool
	pauses        *fencingtest.Pauses
	link          *fencingtest.Link
	worker, other *fencing.Fences
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dsn := pgmigrated.Migrated(t)
	s := &stage{TB: t, admin: pgtest.Connect(t, dsn)}
	producer := pgmigrated.Login(t, dsn, schema.KindProducer)
	lossy, link := fencingtest.Lossy(t, producer)
	s.link = link
	fences := func(dsn string, watch bool) *fencing.Fences {
		cfg, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		if watch {
			s.pauses = fencingtest.Watch(cfg.ConnConfig)
		}
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		f, err := fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	s.worker, s.other = fences(lossy, true), fences(producer, false)
	return s
}

func (s *stage) acquire(f *fencing.Fences) *fencing.Lease {
	s.Helper()
	lease, err := f.Acquire(ctx, "k", ttl)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = lease.Release(ctx) })
	return lease
}

func TestACommitStopsWhereItIsToldTo(t *testing.T) {
	t.Parallel()
	for point, want := range map[fencingtest.Point]error{
		fencingtest.BeforeGate:   fencing.ErrStale,
		fencingtest.BehindGate:   fencing.ErrStale, // its session was ended; the retry is told this
		fencingtest.BeforeCommit: fencing.ErrStale,
		fencingtest.AfterCommit:  nil,
	} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			lease := s.acquire(s.worker)
			stop := s.pauses.At(point)
			done := make(chan error, 1)
			go func() {
				_, err := lease.Commit(ctx, content, nothing)
				done <- err
			}()
			<-stop.Reached()
			fencingtest.Expire(t, s.admin, "fenceline", "k")
			s.acquire(s.other)
			stop.Resume()
			stop.Resume()
			err := <-done
			if want == nil {
				if err != nil {
					t.Fatal(err)
				}
				r, err := lease.Commit(ctx, content, nothing)
				fencingtest.WantReplayed(t, r, err)
				return
			}
			if point == fencingtest.BeforeGate {
				fencingtest.WantRefused(t, err, want)
			} else if err == nil {
				t.Fatal("a holder that was taken over has committed")
			}
			_, err = lease.Commit(ctx, content, nothing)
			if e := fencingtest.WantRefused(t, err, want); e.CurrentToken != 2 || e.Token != 1 {
				t.Errorf("%+v", e)
			}
		})
	}
}

func TestABatchStopsBeforeItIsSentAndBehindItsAnswer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	lease := s.acquire(s.worker)
	for _, point := range []fencingtest.Point{fencingtest.BeforeCommit, fencingtest.AfterCommit} {
		stop := s.pauses.At(point)
		done := make(chan error, 1)
		go func() {
			_, err := lease.CommitBatch(ctx, fencing.Content{Step: string(point)}, empty)
			done <- err
		}()
		<-stop.Reached()
		var n int
		if err := s.admin.QueryRow(ctx, "select count(*) from fenceline.receipt where step = $1", string(point)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if want := map[fencingtest.Point]int{fencingtest.AfterCommit: 1}[point]; n != want {
			t.Errorf("%s: %d receipts", point, n)
		}
		stop.Resume()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestALostAnswerIsUnknownAndThenReplayed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	lease := s.acquire(s.worker)
	lost := s.link.LoseAnswer("the step")
	_, err := lease.Commit(ctx, content, nothing)
	if !errors.Is(err, fencing.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	<-lost
	r, err := lease.Commit(ctx, content, nothing)
	fencingtest.WantReplayed(t, r, err)
}

// failing notes that a test was failed, and goes on.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper()               {}
func (f *failing) Fatalf(string, ...any) { f.failed = true }

func TestTheChecksFailOnAnythingElse(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for name, check := range map[string]func(testing.TB){
		"no refusal": func(tb testing.TB) { fencingtest.WantRefused(tb, nil, fencing.ErrStale) },
		"another refusal": func(tb testing.TB) {
			fencingtest.WantRefused(tb, &fencing.RefusedError{Answer: fencing.ErrClosed}, fencing.ErrStale)
		},
		"a first commit":         func(tb testing.TB) { fencingtest.WantReplayed(tb, fencing.Receipt{}, nil) },
		"a lease of nobody":      func(tb testing.TB) { fencingtest.Expire(tb, s.admin, "fenceline", "nobody's") },
		"no schema of that name": func(tb testing.TB) { fencingtest.Expire(tb, s.admin, "elsewhere", "k") },
	} {
		f := &failing{TB: t}
		check(f)
		if !f.failed {
			t.Errorf("%s passes", name)
		}
	}
}
