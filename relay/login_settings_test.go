package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// withSettings are connections on which settings are as a login's, a database's
// or a cluster's own may be.
func withSettings(t *testing.T, dsn string, settings map[string]string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range settings {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// A cluster that was made without a locale has SQL_ASCII.
func TestTheRelayPublishesAndRetainsWhateverALoginHasSet(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		"bytes as they are": {"client_encoding": "SQL_ASCII"},
		"names in quotes":   {"quote_all_identifiers": "on"},
		"strict isolation":  {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgmigrated.Migrated(t)
			pool, kafka := pgtest.Connect(t, dsn), newMemory(t, "t")
			newProducer(t, pool, "höhe").publish("t", "a", "b")
			login := withSettings(t, dsn, settings)

			r := startRelay(t, login, kafka, quick())
			eventually(t, "both are published", func() bool {
				return query[bool](t, pool, `select not exists (select from fenceline.outbox o where exists (select from fenceline._relay_seen s where s.s1 is null or not pg_visible_in_snapshot(o.xid, s.s1)))`)
			})
			r.end()
			says(t, examined(t, login, kafka), "ok connection: direct", "ok outbox: 1 partition")
			soon := RetentionConfig{Keep: time.Nanosecond, RotateAge: time.Nanosecond, LockTimeout: 10 * time.Second, Tries: 1}
			if r := retain(t, login, soon); !r.Rotated {
				t.Errorf("the next partition has not begun: %+v", r)
			}
		})
	}
}

// A key's shard is computed by the database and compared by the relay: in another
// encoding they would differ, and its events be held for ever.
func TestAnEncodingInWhichKeysWouldBeOthersIsRefused(t *testing.T) {
	t.Parallel()
	dsn := pgmigrated.Migrated(t)
	pool := withSettings(t, dsn, map[string]string{"client_encoding": "LATIN1"})
	var setting *SettingError
	if err := runFor(t, pool, newMemory(t, "t"), quick()); !errors.As(err, &setting) || setting.Name != "client_encoding of the session" || setting.Have != "LATIN1" {
		t.Errorf("a client that speaks LATIN1: %v", err)
	}
	says(t, examined(t, pool, newMemory(t, "t")), "problem settings: client_encoding of the session is LATIN1 (", "set it to UTF8 for the login")
}

// Whoever looks may have a small pool: nothing takes a connection while it holds
// another one that it could do without.
func TestTheDoctorNeedsOneConnectionOfThePool(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(pgmigrated.Migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	ctx, cancel := context.WithTimeout(bg, 30*time.Second)
	defer cancel()
	for _, f := range Examine(ctx, pool, newMemory(t, "t"), []string{"t"}, quick()) {
		if f.Grade == Bad && f.About != "settings" { // those of the tests' server
			t.Errorf("%s: %s", f.About, f.Text)
		}
	}
	if ctx.Err() != nil {
		t.Error("it waited for a connection that it holds")
	}
}
