package migrations

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Part is one of the two independent halves of the tables.
type Part = schema.Part

// The two parts.
const (
	Producer = schema.Producer
	Consumer = schema.Consumer
)

// oldestServer is the oldest supported server_version_num.
const oldestServer = 150000

// DB is what a Migrator works on: a *pgx.Conn, or a *pgxpool.Pool of any size.
// One transaction at a time is open on it.
type DB interface {
	// BeginTx begins a transaction, as pgx does.
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Config is how a Migrator works. Its zero value is usable.
type Config struct {
	// LockPatience is how long a step that gets no lock is tried again before it
	// fails with a LockedError. Defaults to 30 s.
	LockPatience time.Duration

	// LockTimeout is how long a single statement waits for a lock, and so how
	// long everyone who queues up behind it waits. Defaults to 1 s.
	LockTimeout time.Duration

	// Logger receives a line for each step. Defaults to slog.Default().
	Logger *slog.Logger

	// Schema is the schema of the tables, and the prefix of the group roles.
	// Defaults to "fenceline".
	Schema string
}

// Migrator applies and undoes migrations in one schema. It keeps no state
// between calls and is safe for concurrent use if its DB is.
type Migrator struct {
	db       DB
	config   Config
	lockKey  int64
	migrated map[Part][]*migration
}

// New returns a migrator for the schema that config names, or an
// *InvalidNameError. Nothing is sent to the database yet.
func New(db DB, config Config) (*Migrator, error) { return newMigrator(db, config, embedded) }

func newMigrator(db DB, config Config, files fs.FS) (*Migrator, error) {
	if config.Schema == "" {
		config.Schema = schema.Default
	}
	if config.LockPatience == 0 {
		config.LockPatience = 30 * time.Second
	}
	if config.LockTimeout == 0 {
		config.LockTimeout = time.Second
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if err := schema.Validate(config.Schema); err != nil {
		return nil, err
	}
	if config.LockPatience < 0 {
		return nil, fmt.Errorf("migrations: Config.LockPatience is %s, want 0 (for the default) or more", config.LockPatience)
	}
	if config.LockTimeout < time.Millisecond {
		return nil, fmt.Errorf("migrations: Config.LockTimeout is %s, want 0 (for the default) or at least 1ms, PostgreSQL's smallest", config.LockTimeout)
	}
	hash := fnv.New64a()
	hash.Write([]byte("fenceline/migrations/" + config.Schema))
	m := &Migrator{db: db, config: config, lockKey: int64(hash.Sum64()), migrated: map[Part][]*migration{}}
	for _, part := range []Part{Producer, Consumer} {
		all, err := load(files, part)
		if err != nil {
			return nil, err
		}
		m.migrated[part] = all
	}
	return m, nil
}

// Check reports whether this library may run on the part of the schema that it
// finds: nil, a *VersionError with what is there and what is needed, or an
// error that says what could not be read. It changes nothing. Schema "" is the
// default one.
func Check(ctx context.Context, q schema.Querier, name string, part Part) error {
	if name == "" {
		name = schema.Default
	}
	return schema.Check(ctx, q, name, part)
}

// Level returns the number of the newest migration of part that this library
// knows, 0 for an unknown part.
func Level(part Part) int { return schema.Level(part) }

// Direction is up or down.
type Direction string

// The two directions.
const (
	Up   Direction = "up"
	Down Direction = "down"
)

// Step is one migration in one direction.
type Step struct {
	Part      Part
	Version   int
	Name      string
	Direction Direction
}

// String returns, for example, "producer/001_init up".
func (s Step) String() string {
	return fmt.Sprintf("%s/%03d_%s %s", s.Part, s.Version, s.Name, s.Direction)
}

// parts resolves a list of parts: producer before consumer, none means both.
func (m *Migrator) parts(list []Part) ([]Part, error) {
	if len(list) == 0 {
		return []Part{Producer, Consumer}, nil
	}
	named := map[Part]bool{}
	for _, part := range list {
		if part != Producer && part != Consumer {
			return nil, fmt.Errorf("migrations: unknown part %q, want %q or %q", part, Producer, Consumer)
		}
		named[part] = true
	}
	var parts []Part
	for _, part := range []Part{Producer, Consumer} {
		if named[part] {
			parts = append(parts, part)
		}
	}
	return parts, nil
}

func (m *Migrator) newest(part Part) int { return len(m.migrated[part]) }

func (m *Migrator) expand(template string) string { return schema.Expand(template, m.config.Schema) }

func (m *Migrator) role(kind string) string { return schema.Role(m.config.Schema, kind) }

// UpOptions says what to apply.
type UpOptions struct {
	// Parts are the parts to migrate. Defaults to both.
	Parts []Part

	// To is the last version to apply; it needs Parts to name one part.
	// Defaults to the newest of each part.
	To int

	// DryRun runs everything, roles included, in one transaction that is rolled
	// back, so that what it reports was not guessed. It holds the locks of all
	// steps until then. Defaults to false.
	DryRun bool
}

// Up applies what is pending and returns the steps it took, also when it fails
// at a later one: a *ChangedError, *VersionError (the schema was renamed),
// *PrivilegeError, *RoleError, *OwnerError, *ServerError, *LockedError or
// *StepError, or the connection's error. After any of them it can simply be
// run again. With nothing pending it returns no steps, also if the schema is
// already newer than this library.
func (m *Migrator) Up(ctx context.Context, options UpOptions) ([]Step, error) {
	parts, err := m.parts(options.Parts)
	if err != nil {
		return nil, err
	}
	target := func(part Part) int { return m.newest(part) }
	if options.To != 0 {
		if len(parts) != 1 {
			return nil, fmt.Errorf("migrations: a version to migrate up to (%d) needs exactly one part, since each has its own versions", options.To)
		}
		if options.To < 1 || options.To > m.newest(parts[0]) {
			return nil, fmt.Errorf("migrations: there is no %s migration %d, want 1 to %d", parts[0], options.To, m.newest(parts[0]))
		}
		target = func(Part) int { return options.To }
	}
	if options.DryRun {
		return m.dryRun(ctx, func(tx pgx.Tx) ([]Step, error) {
			var steps []Step
			for _, part := range parts {
				err := repeat(&steps, func() (*Step, error) { return m.applyNext(ctx, tx, part, target(part)) })
				if err != nil {
					return steps, err
				}
			}
			return steps, nil
		})
	}
	// Roles exist from here on, whatever becomes of the migrations: another
	// database of the cluster that creates the same ones waits only this long.
	if err := m.inTx(ctx, "prepare the schema", func(tx pgx.Tx) error { return m.prepare(ctx, tx) }); err != nil {
		return nil, err
	}
	var steps []Step
	for _, part := range parts {
		err := repeat(&steps, func() (step *Step, err error) {
			err = m.inTx(ctx, fmt.Sprintf("migrate the %s part up", part), func(tx pgx.Tx) error {
				step, err = m.applyNext(ctx, tx, part, target(part))
				return err
			})
			return m.tookStep(ctx, step, err)
		})
		if err != nil {
			return steps, err
		}
	}
	return steps, nil
}

// DownOptions says what to undo.
type DownOptions struct {
	// Part is the part to undo. Required.
	Part Part

	// To is the version that remains; 0 undoes everything. Defaults to 0.
	To int

	// Force goes ahead where data will be lost. Defaults to false.
	Force bool

	// DryRun runs everything in one transaction that is rolled back. It holds
	// the locks of all steps until then. Defaults to false.
	DryRun bool
}

// Down undoes a part's migrations above options.To, newest first, and returns
// the steps it took. It fails as Up does, with a *VersionError if the schema
// has migrations that this library doesn't know how to undo, and with a
// *DataLossError, before anything is changed, if rows would go. Where there is
// nothing to undo it returns no steps.
func (m *Migrator) Down(ctx context.Context, options DownOptions) ([]Step, error) {
	if _, err := m.parts([]Part{options.Part}); err != nil {
		return nil, err
	}
	if options.To < 0 || options.To > m.newest(options.Part) {
		return nil, fmt.Errorf("migrations: there is no %s migration %d to go down to, want 0 to %d", options.Part, options.To, m.newest(options.Part))
	}
	all := func(tx pgx.Tx) ([]Step, error) {
		var steps []Step
		err := repeat(&steps, func() (*Step, error) { return m.undoLast(ctx, tx, options) })
		return steps, err
	}
	if options.DryRun {
		return m.dryRun(ctx, all)
	}
	// All steps on trial first, so that a refusal by a later step comes before
	// an earlier one is gone. Each step checks again under its own locks.
	if !options.Force {
		if _, err := m.dryRun(ctx, all); err != nil {
			return nil, err
		}
	}
	var steps []Step
	err := repeat(&steps, func() (step *Step, err error) {
		err = m.inTx(ctx, fmt.Sprintf("migrate the %s part down", options.Part), func(tx pgx.Tx) error {
			step, err = m.undoLast(ctx, tx, options)
			return err
		})
		return m.tookStep(ctx, step, err)
	})
	return steps, err
}

// repeat collects steps until there is none left.
func repeat(steps *[]Step, next func() (*Step, error)) error {
	for {
		step, err := next()
		if err != nil || step == nil {
			return err
		}
		*steps = append(*steps, *step)
	}
}

// tookStep passes on what a committed transaction did. A step that failed, or
// whose commit did, wasn't taken as far as anyone knows.
func (m *Migrator) tookStep(ctx context.Context, step *Step, err error) (*Step, error) {
	if err != nil || step == nil {
		return nil, err
	}
	m.config.Logger.InfoContext(ctx, "migration step committed", "schema", m.config.Schema, "part", string(step.Part),
		"version", step.Version, "name", step.Name, "direction", string(step.Direction))
	return step, nil
}

// errRollback makes inTx roll back what a dry run did.
var errRollback = errors.New("migrations: dry run")

func (m *Migrator) dryRun(ctx context.Context, run func(pgx.Tx) ([]Step, error)) (steps []Step, err error) {
	err = m.inTx(ctx, "dry run", func(tx pgx.Tx) error {
		steps, err = run(tx)
		if err == nil {
			err = errRollback
		}
		return err
	})
	if errors.Is(err, errRollback) {
		err = nil
	}
	return steps, err
}
