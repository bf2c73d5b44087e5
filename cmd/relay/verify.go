package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/internal/topiclog"
	"github.com/fenceline/fenceline/verify"
)

func verifyAll(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		postgres  config.Postgres
		kafka     brokers
		log       config.Log
		topics    []string
		consumers []string
		dsns      = config.Postgres{Flag: "-consumer-postgres"}
		dir       string
		limit     int
		asJSON    bool
	)
	s := config.New("relay verify", "Compares what outbox, receipts, fences, topics and the guards of consumers say, and prints every disagreement: events lost, missing, out of order or changed, "+
		"positions without a receipt, and what stands on positions that the outbox doesn't know. It only reads, and only judges what each part still has. A login needs the roles <schema>_relay and <schema>_monitor.")
	postgres.Register(s)
	kafka.Register(s)
	s.List(&topics, "topics", "TOPICS", "", "topics to read besides those of the outbox, such as one that events were republished to")
	s.List(&consumers, "consumers", "VERIFY_CONSUMERS", "", "names of the consumers whose guards are compared, separated by commas", config.Check(once))
	s.String(&dsns.DSN, "consumer-postgres", "CONSUMER_POSTGRES_DSN", "", "connection string of the database that their guards are in; the outbox's if empty. For consumers in several databases, run it once for each", config.Secret(), config.Check(config.CheckDSN))
	s.String(&dsns.Schema, "consumer-schema", "CONSUMER_SCHEMA", "", "schema of their guards; if empty the outbox's, or in another database "+schema.Default, config.Check(schema.Validate))
	s.String(&dir, "dir", "VERIFY_DIR", "", "directory for temporary files, about 150 bytes for each event, record and guard; the system's if empty", config.Check(directory))
	s.Int(&limit, "limit", "VERIFY_LIMIT", 1000, 1, 1<<30, "how many findings are printed; all are counted")
	s.Bool(&asJSON, "json", "", "print one JSON object for each finding, and one for the summary at the end")
	log.Register(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	switch {
	case dsns.Schema != "":
	case dsns.DSN == "":
		dsns.Schema = postgres.Schema
	default:
		dsns.Schema = schema.Default
	}
	reader, err := kafka.log()
	if err != nil {
		return err
	}
	defer reader.Close()
	pool, err := postgres.Open(ctx, "relay verify")
	if err != nil {
		return err
	}
	defer pool.Close()
	theirs := pool
	if dsns.DSN != "" {
		if theirs, err = dsns.Open(ctx, "relay verify"); err != nil {
			return err
		}
		defer theirs.Close()
	}
	if err := kafka.Reach(ctx); err != nil {
		return err
	}
	logger := log.Logger(stderr)
	out := &findings{w: stdout, json: asJSON, limit: limit}
	told := time.Now()
	cfg := verify.Config{
		Producer: pool, Schema: postgres.Schema, Log: topiclog.New(reader), Topics: topics, Consumers: named(consumers, theirs, dsns.Schema), Dir: dir, Logger: logger,
		Found: out.add,
		Progress: func(stage string, done, total int64) {
			if time.Since(told) > 5*time.Second {
				told = time.Now()
				logger.Info("comparing", "stage", stage, "done", done, "total", total)
			}
		},
	}
	report, err := verify.Run(ctx, cfg)
	var missing *verify.NoConsumerError
	if errors.As(err, &missing) || dsns.DSN == "" && noGuards(err) {
		return fmt.Errorf("%w; where its guards are elsewhere, name the database with -consumer-postgres and the schema with -consumer-schema", err)
	}
	if of := (*verify.ConsumerError)(nil); errors.As(err, &of) {
		return config.NeedsRole(err, of.Schema, schema.KindMonitor)
	}
	if file := (*fs.PathError)(nil); errors.As(err, &file) { // the image has no directory for temporary files
		return fmt.Errorf("%w: name a directory that can be written to, with room for about 150 bytes for each event, record and guard, with -dir", err)
	}
	if err != nil {
		return config.NeedsRole(err, postgres.Schema, schema.KindRelay, schema.KindMonitor)
	}
	if err := errors.Join(out.err, out.summary(report)); err != nil {
		return err
	}
	if report.Total() > 0 {
		return config.ErrReported
	}
	return nil
}

// noGuards says whether it is the consumer's part of the schema that isn't there.
func noGuards(err error) bool {
	var version *schema.VersionError
	return errors.As(err, &version) && version.Part == schema.Consumer && version.Problem == schema.Missing
}

// once is the rule for a list without repetitions.
func once(v string) error {
	seen := map[string]bool{}
	for name := range strings.SplitSeq(v, ",") {
		if name = strings.TrimSpace(name); name != "" && seen[name] {
			return fmt.Errorf("%q is there twice: name each once", name)
		}
		seen[name] = true
	}
	return nil
}

// directory is the rule for a directory.
func directory(v string) error {
	if is, err := os.Stat(v); err != nil || !is.IsDir() {
		return errors.New("there is no such directory: it must be there, and writable")
	}
	return nil
}

func named(names []string, pool *pgxpool.Pool, schemaName string) []verify.Consumer {
	var all []verify.Consumer
	for _, n := range names {
		all = append(all, verify.Consumer{Name: n, Pool: pool, Schema: schemaName})
	}
	return all
}

// findings prints them as they come.
type findings struct {
	w     io.Writer
	json  bool
	limit int
	n     int
	err   error
}

func (o *findings) add(f verify.Finding) {
	if o.n++; o.n > o.limit || o.err != nil {
		return
	}
	if o.json {
		o.err = o.encode(struct {
			verify.Finding
			Remedy string `json:"remedy"`
		}{f, f.Kind.Remedy()})
		return
	}
	_, o.err = fmt.Fprintln(o.w, f)
}

func (o *findings) encode(v any) error {
	e := json.NewEncoder(o.w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func (o *findings) summary(r *verify.Report) error {
	if o.json {
		return o.encode(struct {
			Summary *verify.Report `json:"summary"`
		}{r})
	}
	var b strings.Builder
	if o.n > o.limit {
		fmt.Fprintf(&b, "… and %d more (-limit)\n", o.n-o.limit)
	}
	fmt.Fprintf(&b, "%-10s%s, %s, %s in Kafka (%d of them copies), %s\n", "compared", some(r.Streams, "stream"), some(r.Events, "event"), some(r.Records, "record"), r.Copies, some(r.Guards, "guard"))
	if r.Waiting+r.Held+r.Uncovered > 0 {
		fmt.Fprintf(&b, "%-10s%s not published yet, %d of held streams, %s of which one side is past its retention\n", "not", some(r.Waiting, "event"), r.Held, some(r.Uncovered, "position"))
	}
	if r.Foreign > 0 {
		fmt.Fprintf(&b, "%-10s%s of others, in topics that only consumers read\n", "not", some(r.Foreign, "record"))
	}
	for _, k := range verify.Kinds() {
		if n := r.Found[k]; n > 0 {
			fmt.Fprintf(&b, "%-10s%d %s: %s\n", "found", n, k, k.Remedy())
		}
	}
	if r.Total() == 0 {
		fmt.Fprintf(&b, "%-10s%s\n", "found", "no disagreement")
	}
	_, err := io.WriteString(o.w, b.String())
	return err
}
