package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// PostgresConfig configures StartPostgres.
type PostgresConfig struct {
	// Binaries are the PostgreSQL to run. Defaults to what FindPostgres finds.
	Binaries *Binaries

	// Major asks for one major version of PostgreSQL, found as FindPostgresMajor does. Binaries win over it. Defaults to
	// whatever FindPostgres finds.
	Major int

	// Durable keeps fsync and full_page_writes on, so that commits survive a power cut. Without it the data survive
	// the death of any process, but not of the machine, and are kept in memory where the machine has enough.
	// synchronous_commit is on either way. Defaults to false.
	Durable bool

	// Archive keeps all of the server's log beside its data, for Postgres.Backup. Defaults to false.
	Archive bool

	// Settings are further server settings; they win over ours. Defaults to none.
	Settings map[string]string

	// Progress is told what a person waiting should know: that binaries are being fetched, and how far that has
	// come. Defaults to nobody.
	Progress func(string)

	// StartTimeout bounds initdb and the start, each. Defaults to one minute: a busy machine takes ten times as long
	// as an idle one.
	StartTimeout time.Duration
}

// Postgres is a running PostgreSQL server. Its methods may be called from several goroutines; Stop, Kill and Restart
// wait for each other.
type Postgres struct {
	cfg      PostgresConfig
	binaries Binaries
	owner    *supervise.User
	dir      string // scratch: data, log
	port     int
	password string
	guard    *supervise.Guard

	mu      sync.Mutex
	process *supervise.Process // nil while no server runs
	shmID   int                // the running server's System V segment; 0 if unknown
	stopped bool
}

// StartPostgres makes a fresh cluster and starts its server; it returns when the server accepts connections. ctx
// bounds the start alone. Call Stop when done; if this process dies before that, the server ends and its data go all
// the same.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (_ *Postgres, err error) {
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = time.Minute
	}
	p := &Postgres{cfg: cfg, password: rand.Text()}
	if p.owner, err = serverUser(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Binaries != nil:
		p.binaries = *cfg.Binaries
	case cfg.Major != 0:
		p.binaries, err = FindPostgresMajor(ctx, cfg.Major, cfg.Progress)
	default:
		p.binaries, err = FindPostgres(ctx, cfg.Progress)
	}
	if err != nil {
		return nil, err
	}
	if p.dir, err = ScratchDir("postgres", !cfg.Durable, p.owner); err != nil {
		return nil, err
	}
	if p.guard, err = supervise.NewGuard(p.dir); err != nil {
		_ = os.RemoveAll(p.dir)
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = p.discard()
		}
	}()
	if err := p.initdb(ctx); err != nil {
		return nil, err
	}
	if err := p.makeArchive(); err != nil {
		return nil, err
	}
	if err := p.startOnFreePort(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// DSN is the superuser's connection string for a database of this server.
func (p *Postgres) DSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", p.password),
		Host:     fmt.Sprintf("127.0.0.1:%d", p.port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port is the server's TCP port on 127.0.0.1. It stays the same over Restart.
func (p *Postgres) Port() int { return p.port }

// Version is the server's version, such as "15.12".
func (p *Postgres) Version() string { return p.binaries.Version }

// Source tells a person where the server's binaries came from.
func (p *Postgres) Source() string { return p.binaries.Source }

// PID is the postmaster's process id; 0 while no server runs.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return 0
	}
	return p.process.PID()
}

// LogFile is the path of the server's log, which goes with Stop.
func (p *Postgres) LogFile() string { return filepath.Join(p.dir, "postgres.log") }

// Done is closed when the server that runs now has ended, whoever ended it. It is nil while none runs.
func (p *Postgres) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return nil
	}
	return p.process.Done()
}

// Stop ends the server and removes its data. It is first asked to end in order, rolling back what is open; when ctx
// ends, or after ten seconds, it is told to drop everything, and at last killed. The returned error says what didn't
// go in order; the server is gone and its data are removed all the same. A second Stop does nothing.
func (p *Postgres) Stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil
	}
	p.stopped = true
	return errors.Join(p.end(ctx, fastShutdown), p.discard())
}

// StopImmediate ends the server without its final checkpoint, as "pg_ctl stop -m immediate" does, and keeps the data:
// the next Restart recovers from the log.
func (p *Postgres) StopImmediate(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(ctx, immediateShutdown)
}

// Kill ends the postmaster and all its backends with SIGKILL, and keeps the data. It returns when all are gone, so
// nothing is written and no answer is sent after it.
func (p *Postgres) Kill(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process == nil {
		return nil
	}
	if err := p.process.Crash(ctx); err != nil {
		return err
	}
	p.process = nil
	return nil
}

// Restart starts a server on the data and the port of the one that Kill or StopImmediate ended, and returns when it
// accepts connections. A server that still runs is stopped in order first.
func (p *Postgres) Restart(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return errors.New("devstack: restart PostgreSQL: it was stopped and its data are gone")
	}
	if err := p.end(ctx, fastShutdown); err != nil {
		return err
	}
	return p.start(ctx)
}

// discard kills what still runs and removes everything the server had.
func (p *Postgres) discard() error {
	if p.process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = p.process.Crash(ctx)
		p.process = nil
	}
	if p.shmID != 0 {
		removeSharedMemory(p.shmID)
		p.shmID = 0
	}
	err := p.guard.Close()
	return errors.Join(err, os.RemoveAll(p.dir))
}
