package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// at is the same world on another database or server, for its superuser.
func (w *world) at(dsn string) *world {
	w.Helper()
	return &world{TB: w.TB, dsn: dsn, producer: dsn, admin: pgtest.Connect(w.TB, dsn)}
}

// refusesEverything: what every one of the cases must end in. The position is
// the newest that the original has issued, or that the copy knows.
func (w *world) refusesEverything(pos fencing.Position) {
	w.Helper()
	k := w.worker("after")
	_, err := k.commit(pos, content("another", "x"))
	w.is(err, fencing.ErrHistory)
	_, err = k.Acquire(ctx, "new", long)
	w.is(err, fencing.ErrHistory)
	w.exec("update fenceline.lease set expires_at = clock_timestamp() - interval '1 s'")
	_, err = k.Acquire(ctx, pos.Key, long)
	w.is(err, fencing.ErrHistory)
	r, err := k.commit(pos, content("committed", "x"))
	w.ok(err)
	if !r.Replayed {
		w.Error("a receipt that survived was not replayed")
	}
}

// risesAboveAll: from a bump on the new side's positions are above everything
// that the lost side has issued, and attempts of before have an answer.
func (w *world) risesAboveAll(lost fencing.Position) {
	w.Helper()
	k := w.worker("after the bump")
	w.exec("select fenceline.history_bump()")
	fresh := k.acquire(lost.Key)
	if fresh.Position().Epoch <= lost.Epoch {
		w.Errorf("%v, then %v", lost, fresh.Position())
	}
	_, err := k.commit(lost, content("lost", "x"))
	w.is(err, fencing.ErrUnconfirmable)
	r, err := k.commit(fencing.Position{Key: lost.Key, Epoch: lost.Epoch, Token: 1}, content("committed", "x"))
	w.ok(err)
	if !r.Replayed {
		w.Error("a receipt that survived was not replayed")
	}
	_, err = fresh.Commit(ctx, content("s", "x"), write)
	w.ok(err)
}

// before is a key with one commit under token 1.
func (w *world) before() (*worker, fencing.Position) {
	w.Helper()
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.commit(pos, content("committed", "x"))
	w.ok(err)
	return a, pos
}

// Promoted with everything: on a connection that was opened while it was still
// a standby, which nothing tells of the change.
func TestAPromotedStandbyRefusesAlsoOnAConnectionOfBefore(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	_, pos := w.before()
	s, replica := w.standby(t)
	survivor := s.session(s.dsn)
	_, err := survivor.Exec(ctx, "select 1 from fenceline.fence") // it sees the fences already
	w.ok(err)
	_, err = fencing.New(ctx, s.admin, fencing.Config{AllowUnsafeDatabase: true})
	w.is(err, fencing.ErrInvalid)
	if !strings.Contains(err.Error(), "standby") {
		t.Error(err)
	}
	w.ok(replica.Promote(ctx))
	digest, err := content("another", "x").Digest()
	w.ok(err)
	for sql, args := range map[string][]any{
		"select fenceline.enter($1, $2, $3, 'another', 'sha256/raw/1', $4, '5 s')": {pos.Key, pos.Epoch, pos.Token, digest[:]},
		"select fenceline.acquire($1, 'x', '1 min', gen_random_uuid(), '1 s')":     {"new"},
		"select fenceline.rotate($1, $2, $3, gen_random_uuid(), '1 s')":            {pos.Key, pos.Epoch, pos.Token},
		"select fenceline.advance($1, 7)":                                          {"new"},
		"select fenceline.open($1)":                                                {"new"},
		"select fenceline.close($1, $2, $3)":                                       {pos.Key, pos.Epoch, pos.Token},
	} {
		_, err := survivor.Exec(ctx, sql, args...)
		if got := sqlstate(err); got != "FL006" {
			t.Errorf("%s: %s, want FL006", sql, got)
		}
	}
	s.refusesEverything(pos)
	s.exec("select fenceline.history_confirm()") // nothing was lost
	k := s.worker("confirmed")
	_, err = k.commit(pos, content("another", "x"))
	w.ok(err)
}

// The address leads to the standby before that is promoted. There a transaction
// that may write can't even be begun, which the server says with the code of a
// feature that it does not have. So it does of any statement of a login that begins
// its transactions in SERIALIZABLE, which is looked at before the library's own BEGIN.
func TestWhileTheStandbyIsNotPromotedRetryAndCampaignAskAgain(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			askingAStandby(t, isolation)
		})
	}
}

func askingAStandby(t *testing.T, isolation string) {
	w := newServerWorld(t)
	w.set("default_transaction_isolation = '" + isolation + "'")
	_, replica := w.standby(t)
	var port atomic.Int64
	port.Store(int64(w.server.Port()))
	pool := w.poolAt(w.producer, 2, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", port.Load()))
		}
	})
	k := w.workerOn(pool, fencing.Config{Holder: "k"})
	lease := k.acquire("k")
	pos := lease.Position()
	w.ok(replica.CatchUp(ctx))
	port.Store(int64(replica.Port()))
	pool.Reset()

	for name, commit := range map[string]func(context.Context, fencing.Content) (fencing.Receipt, error){
		"callback": func(ctx context.Context, c fencing.Content) (fencing.Receipt, error) {
			return k.Commit(ctx, pos, c, write)
		},
		"batch": func(ctx context.Context, c fencing.Content) (fencing.Receipt, error) {
			return k.CommitBatch(ctx, pos, c, writeBatch)
		},
		"by the lease": func(ctx context.Context, c fencing.Content) (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, c, writeBatch)
		},
	} {
		asked, seen := 0, error(nil)
		_, err := fencing.Retry(ctx, func(ctx context.Context) (r fencing.Receipt, err error) {
			switch asked++; asked {
			case 1:
				return r, fencing.ErrUnknownOutcome // it went to the primary
			case 4:
				return r, fencing.ErrStale
			}
			r, seen = commit(ctx, content(name, "x"))
			return r, seen
		})
		if !errors.Is(err, fencing.ErrStale) || asked != 4 || seen == nil || !strings.Contains(seen.Error(), "recovery") && !strings.Contains(seen.Error(), "hot standby") {
			t.Errorf("%s: asked %d times: %v; the standby said: %v", name, asked, err, seen)
		}
	}

	campaigned := make(chan error, 1)
	go func() {
		_, err := k.Campaign(ctx, "another", fencing.LeaseConfig{TTL: time.Minute, PollEvery: 10 * time.Millisecond})
		campaigned <- err
	}()
	select {
	case err := <-campaigned:
		t.Fatalf("the campaign has ended: %v", err)
	case <-time.After(200 * time.Millisecond): // it must not, however long we wait
	}
	w.ok(replica.Promote(ctx))
	w.is(<-campaigned, fencing.ErrHistory)
}

// Without the last takeover and commit, as after a failover without a synchronous
// standby, or a restore to a point in time: the tokens of what was lost would be
// given out again.
func TestWhatWasLostBeforeAPointInTimeIsNeverStaleNorCommittedAgain(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	a, pos := w.before()
	s, replica := w.standby(t)
	w.ok(replica.CatchUp(ctx))
	w.ok(replica.Disconnect(ctx))
	taken := a.takeOver("k").Position()
	_, err := a.commit(taken, content("lost", "x"))
	w.ok(err)
	w.ok(replica.Promote(ctx))
	s.refusesEverything(pos)
	_, err = s.worker("retry").commit(taken, content("lost", "x"))
	w.is(err, fencing.ErrUnconfirmable) // ahead of this fence: what became of it nobody here can say
	s.risesAboveAll(taken)
}

// From a base backup and the archive of the log, to a moment of before. The
// source lives on, as a primary that nobody has fenced off does: what it has
// issued since is what the restored side must be above.
func TestARestoreToAPointInTimeRefusesUntilAnOperatorHasSpoken(t *testing.T) {
	t.Parallel()
	w := newServerWorldWith(t, devstack.PostgresConfig{Archive: true})
	a, pos := w.before()
	backup, err := w.server.Backup(ctx)
	w.ok(err)
	t.Cleanup(func() {
		if err := backup.Discard(context.Background()); err != nil {
			t.Error(err)
		}
	})
	_, err = a.commit(pos, content("behind the backup", "x")) // which the archive alone has
	w.ok(err)
	w.ok(w.server.RestorePoint(ctx, "before the mistake"))
	taken := a.takeOver("k").Position()
	_, err = a.commit(taken, content("lost", "x"))
	w.ok(err)
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	restored, err := backup.Restore(bounded, "before the mistake")
	w.ok(err)

	s := w.at(restored.DSN("postgres"))
	s.refusesEverything(pos)
	k := s.worker("retry")
	_, err = k.commit(taken, content("lost", "x"))
	w.is(err, fencing.ErrUnconfirmable) // ahead of this fence: what became of it nobody here can say
	s.risesAboveAll(taken)
	r, err := k.commit(pos, content("behind the backup", "x"))
	w.ok(err)
	if !r.Replayed {
		t.Error("a receipt that the archive has brought back was not replayed")
	}
	// On the source the later commit stands.
	r, err = a.commit(taken, content("lost", "x"))
	w.ok(err)
	if !r.Replayed {
		t.Error("the source has lost what it has acknowledged")
	}
}

func TestADatabaseThatMayBeginsANewHistoryByItself(t *testing.T) {
	t.Parallel()
	followsByItself(newWorld(t))
}

func followsByItself(w *world) {
	op := w.mender()
	w.ok(op.OnNewHistory(ctx, fencing.Bump, "alice"))
	for i, act := range []func(*worker, *fencing.Lease){
		// The gate can only refuse; the library begins the history, and the gate answers.
		func(k *worker, old *fencing.Lease) {
			_, err := old.Commit(ctx, content("lost", "x"), write)
			w.is(err, fencing.ErrUnconfirmable)
			r, err := old.Commit(ctx, content("committed", "x"), write)
			w.ok(err)
			if !r.Replayed {
				w.Error("a receipt that survived was not replayed")
			}
		},
		func(k *worker, old *fencing.Lease) {
			_, err := old.CommitBatch(ctx, content("lost", "x"), func(*fencing.Batch) error { return nil })
			w.is(err, fencing.ErrUnconfirmable)
		},
		func(k *worker, old *fencing.Lease) {
			_, err := k.CommitAll(ctx, []fencing.Gate{{Position: old.Position(), Content: content("lost", "x")}}, func(context.Context, []fencing.Tx) error { return nil })
			w.is(err, fencing.ErrUnconfirmable)
		},
		func(k *worker, old *fencing.Lease) { k.acquire("another") },
	} {
		k := w.worker("k")
		key := string(rune('a' + i))
		old := k.acquire(key)
		_, err := old.Commit(ctx, content("committed", "x"), write)
		w.ok(err)
		bumps := value[int](w, "select count(*) from fenceline.history_change where why = 'bump by itself'")
		w.newIdentity("timeline = '0000000" + key + "'")
		act(k, old)
		fresh := k.acquire(key) // no lease of before keeps anybody out
		if fresh.Position().Epoch <= old.Position().Epoch {
			w.Errorf("%v, then %v", old.Position(), fresh.Position())
		}
		w.ok(fresh.Release(ctx))
		if got := value[int](w, "select count(*) from fenceline.history_change where why = 'bump by itself'"); got != bumps+1 {
			w.Errorf("%d new histories", got-bumps)
		}
	}
}

func TestOfManyWhoFindANewHistoryOneBeginsIt(t *testing.T) {
	t.Parallel()
	oneBegins(newWorld(t))
}

func oneBegins(w *world) {
	w.ok(w.mender().OnNewHistory(ctx, fencing.Bump, "alice"))
	a, b := w.worker("a"), w.worker("b")
	a.acquire("k")
	w.newIdentity("timeline = '00000009'")
	// Both have seen that it is another before one of them has the lock.
	lock := w.session(w.dsn)
	tx, err := lock.Begin(ctx)
	w.ok(err)
	_, err = tx.Exec(ctx, "lock table fenceline.fence in exclusive mode")
	w.ok(err)
	pids := []uint32{a.pid(), b.pid()}
	one, two := a.campaignLater(ctx, "l", patient), b.campaignLater(ctx, "m", patient)
	for _, pid := range pids {
		pgtest.WaitBlocked(w, w.admin, pid)
	}
	w.ok(tx.Rollback(ctx))
	p, q := w.won(one).Position(), w.won(two).Position()
	if n := value[int](w, "select count(*) from fenceline.history_change where why = 'bump by itself'"); n != 1 {
		w.Errorf("%d new histories, for %v and %v", n, p, q)
	}
}

// dump is what pg_dump makes of a database; the binaries that are fetched for
// tests come without it.
func (w *world) dump() string {
	w.Helper()
	binaries, err := devstack.FindPostgres(ctx, nil)
	w.ok(err)
	program := filepath.Join(binaries.Dir, "pg_dump")
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("pg_dump"); err != nil {
			w.Skip("there is no pg_dump beside PostgreSQL's binaries, nor in PATH")
		}
	}
	out, err := exec.CommandContext(ctx, program, "--inserts", "--no-publications", "--schema=fenceline", "--schema=public", "--dbname="+w.dsn).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && strings.Contains(string(exit.Stderr), "server version mismatch") {
		w.Skip("the machine's pg_dump is older than the server; with the machine's own server this runs")
	}
	w.ok(err)
	// Without what is psql's alone.
	return regexp.MustCompile(`(?m)^\\.*$`).ReplaceAllString(string(out), "")
}

// load runs a dump, in place of what is there.
func (w *world) load(dump string) {
	w.Helper()
	conn := w.session(w.dsn)
	_, err := conn.PgConn().Exec(ctx, "drop schema if exists fenceline cascade; drop schema if exists public cascade").ReadAll()
	w.ok(err)
	_, err = conn.PgConn().Exec(ctx, dump).ReadAll()
	w.ok(err)
	w.ok(conn.Close(ctx)) // a dump sets the session's search path
}

func TestAnOlderDumpLoadedOverTheSameDatabaseRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, pos := w.before()
	older := w.dump()
	taken := a.takeOver("k").Position()
	_, err := a.commit(taken, content("lost", "x"))
	w.ok(err)
	a.pool.Reset()
	w.load(older)
	s := w.at(w.dsn)
	s.refusesEverything(pos)
	_, err = s.worker("retry").commit(taken, content("lost", "x"))
	w.is(err, fencing.ErrUnconfirmable)
	s.risesAboveAll(taken)
}

func TestADumpLoadedIntoAnotherDatabaseOrServerRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, pos := w.before()
	dump := w.dump()
	elsewhere := newServerWorld(t)
	for name, dsn := range map[string]string{"database": pgtest.DSN(t), "server": elsewhere.dsn} {
		s := w.at(dsn)
		// On another server it is the system that tells, even where the database's
		// and the table's numbers should be the same.
		s.load(dump)
		if name == "server" {
			s.exec("update fenceline.history h set database_oid = (select oid from pg_database where datname = current_database()), self_oid = h.tableoid")
		}
		s.refusesEverything(pos)
		lost := pos
		lost.Token++
		s.risesAboveAll(lost)
	}
}

// standby is a streaming replica of the world's server, and the world that it shows.
func (w *world) standby(t *testing.T) (*world, *devstack.Replica) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	replica, err := w.server.StartReplica(ctx, devstack.ReplicaConfig{})
	w.ok(err)
	t.Cleanup(func() {
		if err := replica.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	w.ok(replica.CatchUp(ctx))
	return w.at(replica.DSN("postgres")), replica
}
