package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// settings is where the story plays.
type settings struct {
	Postgres string
	Brokers  []string
}

const (
	partitions = 6
	// Short, so that a takeover can be watched; 15 s is what a service would use.
	leaseTTL = 1500 * time.Millisecond
	relayTTL = 2 * time.Second
)

// stage is the servers, and what belongs to this run on them.
type stage struct {
	out  *printer
	dir  string
	cast *cast

	dsn         string
	given       bool // the server is somebody's, and so is the password in dsn
	givenKafka  bool
	brokers     []string
	schema      string // fenceline's
	workSchema  string // the workers' own
	modelSchema string // the downstream service's own
	topic       string
	group       string

	pool  *pgxpool.Pool
	kafka *kgo.Client
	admin *kadm.Client

	undo []func(context.Context) error
}

// newStage starts or reaches the servers and makes what the run needs. close
// removes everything again, also after an error here.
func newStage(ctx context.Context, s settings, out *printer) (*stage, error) {
	g := &stage{out: out, dsn: s.Postgres, given: s.Postgres != "", givenKafka: len(s.Brokers) > 0, brokers: s.Brokers}
	run := strings.ToLower(rand.Text()[:8])
	g.schema, g.workSchema, g.modelSchema = "fenceline_demo_"+run, "quake_work_"+run, "quake_report_"+run
	g.topic, g.group = "quakes-demo-"+run, "quake-report-"+run
	err := g.open(ctx)
	return g, err
}

func (g *stage) open(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "fenceline-demo-")
	if err != nil {
		return err
	}
	g.dir = dir
	g.undo = append(g.undo, func(context.Context) error { return os.RemoveAll(dir) })
	if err := g.openPostgres(ctx); err != nil {
		return err
	}
	if err := g.openKafka(ctx); err != nil {
		return err
	}
	if err := g.install(ctx); err != nil {
		return err
	}
	if g.cast, err = newCast(dir); err != nil {
		return err
	}
	g.undo = append(g.undo, func(context.Context) error { g.cast.close(); return nil })
	return nil
}

func (g *stage) openPostgres(ctx context.Context) error {
	if g.dsn == "" {
		p, err := devstack.StartPostgres(ctx, devstack.PostgresConfig{Durable: true, Progress: func(s string) { g.out.note("%s", s) }})
		if err != nil {
			return err
		}
		g.undo = append(g.undo, p.Stop)
		g.dsn = p.DSN("postgres")
		g.out.note("PostgreSQL %s (%s) on 127.0.0.1:%d, for this run alone", p.Version(), p.Source(), p.Port())
	}
	pg := config.Postgres{DSN: g.dsn, Schema: g.schema}
	pool, err := pg.Open(ctx, "demo")
	if err != nil {
		return err
	}
	if c := pool.Config().ConnConfig; g.given {
		g.out.note("PostgreSQL at %s:%d, database %q, in the schemas %s, %s and %s, which are removed at the end", c.Host, c.Port, c.Database, g.schema, g.workSchema, g.modelSchema)
	}
	g.pool = pool
	g.undo = append(g.undo, func(context.Context) error { pool.Close(); return nil })
	return nil
}

func (g *stage) openKafka(ctx context.Context) error {
	if !g.givenKafka {
		b, err := devstack.StartBroker()
		if err != nil {
			return err
		}
		g.undo = append(g.undo, func(context.Context) error { b.Stop(); return nil })
		g.brokers = []string{b.Addr()}
		g.out.note("Kafka-protocol broker in this process on %s", b.Addr())
	} else {
		k := config.Kafka{Brokers: g.brokers}
		if err := k.Reach(ctx); err != nil {
			return err
		}
		g.out.note("Kafka at %s, with the topic %s and the group %s, which are removed at the end", strings.Join(g.brokers, ","), g.topic, g.group)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(g.brokers...), kgo.MetadataMinAge(100*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	g.kafka, g.admin = client, kadm.NewClient(client)
	g.undo = append(g.undo, func(context.Context) error { client.Close(); return nil })
	answer, err := g.admin.CreateTopic(ctx, partitions, -1, map[string]*string{"cleanup.policy": kadm.StringPtr("delete")}, g.topic)
	if err == nil {
		err = answer.Err
	}
	if err != nil {
		return fmt.Errorf("create topic %s on %s: %w", g.topic, strings.Join(g.brokers, ","), err)
	}
	if g.givenKafka {
		g.undo = append(g.undo, g.deleteFromKafka)
	}
	return nil
}

// deleteFromKafka removes topic and group. A member that was killed is in the
// group until its session is over.
func (g *stage) deleteFromKafka(ctx context.Context) error {
	_, err := g.admin.DeleteTopic(ctx, g.topic)
	return errors.Join(err, g.until(ctx, "the group to be deleted", func() (bool, string, error) {
		_, err := g.admin.DeleteGroup(ctx, g.group)
		if err == nil || errors.Is(err, kerr.GroupIDNotFound) {
			return true, "", nil
		}
		return false, err.Error(), nil
	}))
}

// install applies the migrations and makes the tables of workers and service.
// Each child then gets the rights of its group role, and no more.
func (g *stage) install(ctx context.Context) error {
	quiet := slog.New(slog.DiscardHandler)
	m, err := migrations.New(g.pool, migrations.Config{Schema: g.schema, Logger: quiet})
	if err != nil {
		return err
	}
	g.undo = append(g.undo, g.uninstall)
	if _, err := m.Up(ctx, migrations.UpOptions{}); err != nil {
		return err
	}
	if err := createResults(ctx, g.pool, g.workSchema); err != nil {
		return err
	}
	model, err := readmodel.New(g.modelSchema)
	if err != nil {
		return err
	}
	if err := model.Create(ctx, g.pool); err != nil {
		return err
	}
	var superuser bool
	if err := g.pool.QueryRow(ctx, "select rolsuper from pg_roles where rolname = current_user").Scan(&superuser); err != nil {
		return err
	}
	for _, grant := range []struct{ kind, own string }{{"producer", g.workSchema}, {"relay", ""}, {"consumer", g.modelSchema}} {
		role := schema.Quote(schema.Role(g.schema, grant.kind))
		var sql []string
		if !superuser {
			sql = append(sql, "grant "+role+" to current_user")
		}
		if grant.own != "" {
			own := schema.Quote(grant.own)
			sql = append(sql, "grant usage on schema "+own+" to "+role, "grant select, insert, update on all tables in schema "+own+" to "+role)
		}
		for _, s := range sql {
			if _, err := g.pool.Exec(ctx, s); err != nil {
				return fmt.Errorf("give the %s its rights: %w", grant.kind, err)
			}
		}
	}
	return nil
}

// uninstall leaves nothing of this run in the database, its group roles
// included: they are named after the run.
func (g *stage) uninstall(ctx context.Context) error {
	var errs []error
	for _, name := range []string{g.workSchema, g.modelSchema, g.schema} {
		_, err := g.pool.Exec(ctx, "drop schema if exists "+schema.Quote(name)+" cascade")
		errs = append(errs, err)
	}
	for _, kind := range schema.Kinds() {
		_, err := g.pool.Exec(ctx, "drop role if exists "+schema.Quote(schema.Role(g.schema, kind)))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// close undoes in reverse order. The caller's context may be over.
func (g *stage) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var errs []error
	for i := len(g.undo) - 1; i >= 0; i-- {
		errs = append(errs, g.undo[i](ctx))
	}
	g.undo = nil
	return errors.Join(errs...)
}

// leftError is that the run could not be removed as a whole.
type leftError struct {
	stage *stage
	err   error
}

// Error says what to look for on servers that stay.
func (e *leftError) Error() string {
	g, look := e.stage, ""
	if g.given {
		look += fmt.Sprintf("; look for the schemas %s, %s and %s and the roles that begin with %[1]s", g.schema, g.workSchema, g.modelSchema)
	}
	if g.givenKafka {
		look += fmt.Sprintf("; look for topic %s and group %s", g.topic, g.group)
	}
	return "not everything could be removed: " + strings.ReplaceAll(e.err.Error(), "\n", "; ") + look
}

func (e *leftError) Unwrap() error { return e.err }

// child is the configuration that all children share.
func (g *stage) child(role, name, pgRole, input string) childConfig {
	return childConfig{
		Role: role, Name: name, DSN: g.dsn, PGRole: schema.Role(g.schema, pgRole), Schema: g.schema, WorkSchema: g.workSchema, ModelSchema: g.modelSchema,
		Brokers: g.brokers, Topic: g.topic, Group: g.group, LeaseTTL: leaseTTL, Input: input,
	}
}
