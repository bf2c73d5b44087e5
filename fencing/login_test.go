package fencing_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
)

// set gives the producer's login settings of its own, from its next connection on.
func (w *world) set(settings ...string) {
	w.Helper()
	cfg, err := pgx.ParseConfig(w.producer)
	w.ok(err)
	for _, s := range settings {
		w.exec(fmt.Sprintf("alter role %s set %s", pgx.Identifier{cfg.User}.Sanitize(), s))
	}
}

// A login's statement_timeout is for its queries. A takeover waits for as long as
// it was told, and says who is in the way; and it ends a session that only it can
// tell from a living one (see unblock).
func TestALoginsStatementTimeoutDoesNotEndTheWaitForAFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.worker("a"), w.worker("b"), w.worker("c")
	lease := a.acquire("k")
	mine := b.acquireWith("mine", fencing.LeaseConfig{TTL: 5 * time.Minute, Wait: 700 * time.Millisecond})
	w.set("statement_timeout = '500ms'")
	b.pool.Reset()
	var blocked *fencing.BlockedError

	own := c.pauseBehindGate(mine.Position(), content("s", "x"))
	if _, err := mine.Rotate(ctx); !errors.As(err, &blocked) || len(blocked.PIDs) != 1 || blocked.PIDs[0] != int32(own.pid) {
		t.Errorf("rotate: %v", err)
	}
	own.goOn()
	w.ok((<-own.done).err)

	p := a.pauseBehindGate(lease.Position(), content("s", "x"))
	w.expire("k")
	if _, err := b.Acquire(ctx, "k", fencing.LeaseConfig{TTL: 5 * time.Minute, Wait: 700 * time.Millisecond}); !errors.As(err, &blocked) || len(blocked.PIDs) != 1 || blocked.PIDs[0] != int32(p.pid) {
		t.Errorf("acquire: %v", err)
	}
	closed := make(chan error, 1)
	go func() {
		_, err := b.Close(ctx, lease.Position())
		closed <- err
	}()
	select {
	case err := <-closed:
		t.Fatalf("close: %v", err)
	case <-time.After(700 * time.Millisecond):
	}
	p.goOn()
	w.ok(errors.Join((<-p.done).err, <-closed))
}

// In the query modes that go through a pooler times are text, in the style of the
// session. Where the driver can't read that, New says so; found out later, an
// acquire would have committed.
func TestNewRefusesALoginWhoseSettingsSpellValuesAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		setting, mode, refused string
	}{
		{"DateStyle = 'German, DMY'", "exec", "DateStyle of the session is German, DMY"},
		{"DateStyle = 'SQL, MDY'", "simple_protocol", "DateStyle of the session is SQL, MDY"},
		{"DateStyle = 'ISO, DMY'", "exec", ""},
		{"DateStyle = 'German, DMY'", "cache_statement", ""},
		{"IntervalStyle = 'iso_8601'", "exec", "IntervalStyle of the session is iso_8601"},
		{"IntervalStyle = 'postgres_verbose'", "simple_protocol", "IntervalStyle of the session is postgres_verbose"},
		{"IntervalStyle = 'iso_8601'", "cache_describe", ""},
		{"client_encoding = 'LATIN1'", "cache_statement", "client_encoding of the session is LATIN1"},
		{"client_encoding = 'LATIN1'", "exec", "client_encoding of the session is LATIN1"},
		{"client_encoding = 'SQL_ASCII'", "exec", ""},
		{"standard_conforming_strings = off", "cache_statement", "standard_conforming_strings of the session is off"},
		{"TimeZone = 'Asia/Kathmandu'", "exec", ""},
		{"bytea_output = 'escape'", "exec", ""},
	} {
		name, _, _ := strings.Cut(c.setting, " ")
		w.set(c.setting)
		pool := w.poolAt(w.producer+"&default_query_exec_mode="+c.mode, 2)
		fences, err := fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true, Logger: quiet()})
		setting, ok := errors.AsType[*fencing.SettingError](err)
		switch {
		case c.refused != "":
			if !ok || !strings.Contains(err.Error(), c.refused) || !strings.Contains(setting.Remedy, name) {
				t.Errorf("%s, %s: %v", c.setting, c.mode, err)
			}
		case err != nil:
			t.Errorf("%s, %s: %v", c.setting, c.mode, err)
		default:
			k := &worker{fences, w, "k", pool}
			lease := k.acquire("Größe " + c.setting + c.mode)
			for range 2 { // the second one is a replay, whose evidence has a time, too
				r, err := lease.Commit(ctx, content("s", "x"), write)
				if err != nil || r.CommittedAt.IsZero() {
					t.Errorf("%s, %s: %+v, %v", c.setting, c.mode, r, err)
				}
			}
			if n := value[int](w, "select count(*) from fenceline.fence where key = $1", lease.Position().Key); n != 1 {
				t.Errorf("%s, %s: the key is stored as another one", c.setting, c.mode)
			}
		}
		w.reset(name)
	}
}

// reset takes a setting of the producer's login back.
func (w *world) reset(name string) {
	w.Helper()
	cfg, err := pgx.ParseConfig(w.producer)
	w.ok(err)
	w.exec(fmt.Sprintf("alter role %s reset %s", pgx.Identifier{cfg.User}.Sanitize(), name))
}
