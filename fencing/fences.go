package fencing

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config configures [New]. The zero value is usable.
type Config struct {
	// Schema is the schema that the migrations were applied to. Defaults to
	// "fenceline".
	Schema string
	// Holder names this process in leases, in what a loser of a lease is told
	// and in the history of turns. Defaults to host name and process id.
	Holder string
	// CommitTimeout replaces the caller's deadline from the moment at which
	// COMMIT is sent: a COMMIT that is cancelled has an unknown outcome.
	// Defaults to 30 s.
	CommitTimeout time.Duration
	// GateTimeout bounds how long a commit by plain position may be idle, or
	// busy in one statement, behind the gate; then the database ends its
	// session, so that a paused holder cannot block the takeover. A commit by
	// lease uses the lease's own. At most one day. Defaults to 15 s.
	GateTimeout time.Duration
	// GroupCommit is how many transactions at a time carry the commits of the
	// batch shape of this process, of whatever keys: what comes while all are under
	// way waits, and goes together in the next one (a group commit). So do callbacks
	// under leases with [LeaseConfig.CoalesceCallbacks]. Each has its own gate, its
	// own receipt and its own answer; one that fails takes no other with it. It
	// makes many small commits cheaper, and each wait for company: good is 1 or 2.
	// A transaction has up to 64 commits, and of a lease as many as its Coalesce or
	// CoalesceCallbacks says.
	// Commits that take long, by what the last ones took, go alone.
	// What commits of different keys lock besides their fences is then locked
	// together, in the order of their coming, until the slowest of them is done: two
	// transactions that lock rows which several keys share (a counter, say) can meet
	// in a deadlock, which the database ends for one of them; its commits go again, and
	// one by one in the end. And what guards a commit against its own statements sees
	// all that its transaction may do: a protected table takes a row of any key of the
	// group, and a setting that a function or a view changes (not one that the text of
	// a statement shows) is in force for those behind it. A lease with
	// [LeaseConfig.Coalesce] 1 takes no part.
	// Defaults to 0: only commits of the same key share transactions.
	GroupCommit int
	// System selects the toolkit's own leases, whose keys begin with
	// "fenceline:" (the relay's), and the functions that its role may call.
	// Defaults to false.
	System bool
	// AllowUnsafeDatabase lets New accept a server with fsync or
	// full_page_writes off, on which no promise holds. For tests on throw-away
	// servers. Defaults to false.
	AllowUnsafeDatabase bool
	// Wake is called after each commit that has appended events through its
	// transaction, before the commit returns: it must not block. outbox.Waker has
	// one that wakes the relay. A transaction of Enter is the caller's, who calls
	// it himself. Defaults to nobody.
	Wake func()
	// Logger receives what a lease's renewals meet. Defaults to slog.Default.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Schema == "" {
		c.Schema = schema.Default
	}
	if c.Holder == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Holder = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if c.CommitTimeout == 0 {
		c.CommitTimeout = 30 * time.Second
	}
	if c.GateTimeout == 0 {
		c.GateTimeout = 15 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	if err := schema.Validate(c.Schema); err != nil {
		return fmt.Errorf("fencing: %w", err)
	}
	switch {
	case len(c.Holder) > 255 || !validText(c.Holder):
		return &InvalidError{"holder", "is not 1 to 255 bytes of UTF-8"}
	case c.CommitTimeout < 0:
		return &InvalidError{"commit timeout", fmt.Sprintf("is %v, want a positive duration", c.CommitTimeout)}
	case c.GroupCommit < 0 || c.GroupCommit > maxGroupCommit:
		return &InvalidError{"group commit", fmt.Sprintf("is %d, want 0 to %d transactions", c.GroupCommit, maxGroupCommit)}
	case c.GateTimeout < 0 || c.GateTimeout > 24*time.Hour:
		return &InvalidError{"gate timeout", fmt.Sprintf("is %v, want a positive duration of at most 24 h", c.GateTimeout)}
	}
	return nil
}

// Fences hands out leases and commits under them, in one database. It is safe
// for use by many goroutines; a process needs one.
//
// A commit uses one connection of the pool from the gate to COMMIT, and the
// renewals of all leases together use one now and then: where a callback can
// last longer than a lease, give the pool two connections at least.
type Fences struct {
	pool  *pgxpool.Pool
	cfg   Config
	sql   statements
	turns turns         // of commits of the batch shape
	piped bool          // transactions may follow each other on a connection
	lent  time.Duration // how long they may; another one than pipeTime only in tests

	group, groupCalls *line // of all keys, by shape; nil without Config.GroupCommit

	mu       sync.Mutex
	contests map[string]*contest // who campaigns in this process, by key
	leases   map[*Lease]struct{} // those that are renewed
	renewing bool                // a renewer runs
	wake     chan struct{}       // tells it that a lease was added or is gone
}

// errNoPool is the answer where there is nothing to connect with.
var errNoPool = &InvalidError{"pool", "is nil: make one with pgxpool.New, and look at its error"}

// New checks that the schema is there, that this library and it go together,
// and that database and server keep what they acknowledge: else it refuses,
// with a [*SettingError]. An argument that can't be used is an [*InvalidError]. It starts nothing: leases are renewed in the
// background from the first Acquire to the last Release.
//
// The pool stays the caller's. A login needs the role fenceline_producer. A
// pooler in transaction mode may be between: nothing is kept in a session but
// what pgx prepares, so let it prepare nothing (default_query_exec_mode=exec or
// cache_describe in the connection string), or the pooler carry that along.
func New(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Fences, error) {
	if pool == nil {
		return nil, errNoPool
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := schema.Check(ctx, pool, cfg.Schema, schema.Producer); err != nil {
		return nil, pooled(fmt.Errorf("fencing: %w", err))
	}
	f := &Fences{
		pool: pool, piped: pipes(pool), lent: pipeTime, cfg: cfg, sql: newStatements(cfg.Schema, cfg.System),
		contests: map[string]*contest{}, leases: map[*Lease]struct{}{}, wake: make(chan struct{}, 1),
	}
	if err := checkDatabase(ctx, pool, cfg); err != nil {
		return nil, pooled(err)
	}
	if cfg.GroupCommit > 0 {
		f.group, f.groupCalls = f.newGroup(f.commitMembers), f.newGroup(f.commitCallbacks)
	}
	return f, nil
}

// Schema is the schema that the fences are in.
func (f *Fences) Schema() string { return f.cfg.Schema }
