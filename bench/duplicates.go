package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack/kafkaconnect"
)

// duplicateArms are those of the drain section that are killed.
var duplicateArms = []string{"fenceline", "SKIP LOCKED relay", "Debezium, tuned"}

// mortal is a relay that can be killed and started again.
type mortal interface {
	kill(ctx context.Context) error
	revive(ctx context.Context) error
}

type mortalChild struct {
	*childProcess
	stack *stack
	name  string
	job   job
}

func (m *mortalChild) revive(context.Context) error {
	c, err := m.stack.startChild(m.name, m.job)
	if err != nil {
		return err
	}
	m.childProcess = c
	return m.begin()
}

func (m *mortalChild) kill(context.Context) error { m.childProcess.kill(); return nil }

type mortalConnect struct{ *kafkaconnect.Worker }

func (m mortalConnect) kill(ctx context.Context) error   { return m.Kill(ctx) }
func (m mortalConnect) revive(ctx context.Context) error { return m.Restart(ctx) }

// killed kills an arm in the middle of a drain, starts it again at once, and
// counts what has arrived twice.
func (d *drainer) killed(ctx context.Context, a *arm) (_ result, err error) {
	d.n++
	topic, database := fmt.Sprintf("%s-%d", d.name, d.n), fmt.Sprintf("%s_%d", d.name, d.n)
	if err := d.topic(ctx, topic, d.partitions); err != nil {
		return result{}, err
	}
	defer d.dropTopic(ctx, topic)
	defer d.dropDatabase(ctx, database)
	var m mortal
	if a.java != nil {
		w, e := d.connectOn(ctx, a, database, topic)
		if e != nil {
			return result{}, e
		}
		defer func() { err = errors.Join(err, w.Stop(ctx)) }()
		m = mortalConnect{w}
	} else {
		dsn, err := d.load(ctx, a, d.w, database, topic)
		if err != nil {
			return result{}, err
		}
		c := &mortalChild{stack: d.stack, name: a.name, job: job{dsn: dsn, kafka: d.kafka.Addr(), topic: topic, events: d.w.Events}}
		if err := c.revive(ctx); err != nil {
			return result{}, err
		}
		defer func() { c.childProcess.kill() }()
		m = c
	}
	if err := d.until(ctx, topic, int64(d.w.Events/2)); err != nil {
		return result{}, err
	}
	if err := m.kill(ctx); err != nil {
		return result{}, err
	}
	pause(ctx, 500*time.Millisecond) // what was on its way arrives
	there, err := d.arrived(ctx, topic)
	if err != nil {
		return result{}, err
	}
	began := time.Now()
	if err := m.revive(ctx); err != nil {
		return result{}, err
	}
	if err := d.until(ctx, topic, there+1); err != nil {
		return result{}, err
	}
	resumed := time.Since(began)
	v, err := d.checkWhenQuiet(ctx, topic, d.w.counts())
	return result{verdict: &v, figures: map[string]float64{"copies": float64(v.Copies), "share": 100 * float64(v.Copies) / float64(d.w.Events), "resumed": resumed.Seconds(), "at": float64(there)}}, err
}

// connectOn starts a worker on a backlog of a table of its own.
func (d *drainer) connectOn(ctx context.Context, a *arm, database, topic string) (*kafkaconnect.Worker, error) {
	dsn, err := d.database(ctx, database)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := createDebezium(ctx, conn); err != nil {
		return nil, err
	}
	w, err := a.java.start(ctx, d.stack, dsn, d.say)
	if err != nil {
		return nil, err
	}
	if err = w.Pause(ctx); err == nil {
		err = a.fill(ctx, conn, d.w, topic)
	}
	if err == nil {
		err = w.Resume(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.Stop(ctx))
	}
	return w, nil
}

func (b *bench) duplicates(ctx context.Context) (*figures, error) {
	w := b.size.Drain
	w.Events = b.size.Duplicates
	f := &figures{ID: "duplicates", Title: "Killed in the middle of a drain", Bars: "copies",
		Text:    fmt.Sprintf("A drain of %d events; when half of them have arrived the relay is killed (SIGKILL) and started again at once. Counted is what has arrived a second time. Every arm runs in the configuration in which its drain was measured: to note less often what is published makes a drain faster, and a crash worse.", w.Events),
		Columns: []column{{Key: "copies", Title: "copies"}, {Key: "share", Title: "% of the events", Digits: 1, Brief: true}, {Key: "at", Title: "arrived when killed", Brief: true}, {Key: "resumed", Title: "seconds from the new start to the next record", Digits: 1, Brief: true}}}
	d := &drainer{stack: b.stack, say: b.say, name: "killed", w: w, partitions: partitions}
	var trials []trial
	for _, name := range duplicateArms {
		if arm := findArm(name); b.picked(name, "") {
			trials = append(trials, trial{name, arm.note, "", func(ctx context.Context) (result, error) { return d.killed(ctx, arm) }})
		}
	}
	return f, f.measure(ctx, trials, b.size.KillRounds, b.say)
}
