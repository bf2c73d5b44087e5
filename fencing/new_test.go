package fencing_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestNewRefusesAServerThatCanLoseWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t) // the test server runs with fsync off
	_, err := fencing.New(ctx, pool, fencing.Config{})
	if !errors.Is(err, fencing.ErrInvalid) || !strings.Contains(err.Error(), "fsync") && !strings.Contains(err.Error(), "full_page_writes") {
		t.Error(err)
	}
}

func TestAPoolThatIsNilIsNamedWhereItIsGiven(t *testing.T) {
	t.Parallel()
	_, newErr := fencing.New(ctx, nil, fencing.Config{})
	_, operatorErr := fencing.NewOperator(ctx, nil, "")
	for _, err := range []error{newErr, operatorErr} {
		if e, ok := errors.AsType[*fencing.InvalidError](err); !ok || e.Field != "pool" {
			t.Error(err)
		}
	}
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	empty := pgtest.Pool(t)
	_, err := fencing.New(ctx, empty, fencing.Config{AllowUnsafeDatabase: true})
	if err == nil || !strings.HasPrefix(err.Error(), "fencing: ") || !strings.Contains(err.Error(), "migrate") {
		t.Errorf("missing schema: %v", err)
	}
	for name, cfg := range map[string]fencing.Config{
		"schema name":    {Schema: `x";drop`},
		"system schema":  {Schema: "pg_catalog"},
		"holder":         {Holder: "\xff"},
		"commit timeout": {CommitTimeout: -time.Second},
		"gate timeout":   {GateTimeout: -time.Second},
		"long timeout":   {GateTimeout: 25 * time.Hour},
	} {
		if _, err := fencing.New(ctx, empty, cfg); err == nil || !strings.HasPrefix(err.Error(), "fencing: ") || strings.Contains(err.Error(), "migrate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnErrorDoesNotTellThePassword(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u, err := url.Parse(w.producer)
	w.ok(err)
	name := u.User.Username()
	u.User = url.UserPassword(name, "secret-and-wrong")
	pool, err := pgxpool.New(ctx, u.String())
	w.ok(err)
	defer pool.Close()
	_, err = fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true})
	if sqlstate(err) != "28P01" || strings.Contains(err.Error(), "secret-and-wrong") {
		t.Error(err)
	}
}
