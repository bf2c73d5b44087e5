package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/quakes"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/twmb/franz-go/pkg/kgo"
)

// story is one run.
type story struct {
	*stage
	out      *printer
	input    string
	reports  []quakes.Report
	networks []string // those with most reports first

	relay, consumer, a, b *child

	stale  int    // commits refused as stale
	counts totals // of consumers that have ended
}

// tell plays the story, checks its facts, and removes what it has made. The
// verdict is the last line, printed when all is removed; where everything is
// kept for a look around, it comes before that.
func tell(ctx context.Context, s settings, reports []quakes.Report, input string, out *printer, keep bool) (err error) {
	t := &story{out: out, input: input, reports: reports, counts: totals{}}
	perNet := map[string]int{}
	for _, r := range reports {
		perNet[r.Net]++
	}
	t.networks = slices.SortedFunc(maps.Keys(perNet), func(a, b string) int {
		return cmp.Or(perNet[b]-perNet[a], strings.Compare(a, b))
	})
	if len(t.networks) < 4 || perNet[t.networks[3]] < 10 {
		return errors.New("the story needs at least four networks with ten reports each: take a larger input")
	}
	out.note("%d earthquake reports of %d seismic networks in one week (credit: U.S. Geological Survey)", len(reports), len(t.networks))

	t.stage, err = newStage(ctx, s, out)
	var f *facts
	if err == nil {
		f, err = t.play(ctx)
	}
	if keep && err == nil {
		out.verdict(f)
		t.keep(ctx)
	}
	if e := t.stage.close(); e != nil {
		err = errors.Join(err, &leftError{t.stage, e})
	}
	if err != nil {
		return err
	}
	if !keep {
		out.verdict(f)
	}
	if len(f.differ) > 0 {
		return config.ErrReported
	}
	return nil
}

func (t *story) play(ctx context.Context) (*facts, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	for _, scene := range []func(context.Context) error{
		t.quietStart, t.pausedBeforeTheGate, t.pausedBehindTheGate, t.lostAnswers, t.otherContent, t.killedRelay, t.lateCopy, t.rewoundGroup,
	} {
		if err := scene(ctx); err != nil {
			return nil, err
		}
	}
	return t.check(ctx)
}

func (t *story) begin(ctx context.Context) (err error) {
	for _, c := range []struct {
		to               **child
		role, name, kind string
	}{
		{&t.relay, "relay", "relay-1", "relay"}, {&t.consumer, "consumer", "quake-report", "consumer"},
		{&t.a, "worker", "worker-a", "producer"}, {&t.b, "worker", "worker-b", "producer"},
	} {
		if *c.to, err = t.cast.start(ctx, t.child(c.role, c.name, c.kind, t.input)); err != nil {
			return err
		}
	}
	return nil
}

// work lets both workers commit at the same time, up to limit each.
func (t *story) work(ctx context.Context, limit int) (wait func() (worked, error), err error) {
	var waits []func(context.Context, any) error
	for _, w := range []*child{t.a, t.b} {
		answer, err := w.begin("work", workArgs{t.networks, limit})
		if err != nil {
			return nil, err
		}
		waits = append(waits, answer)
	}
	return func() (sum worked, err error) {
		for _, answer := range waits {
			var w worked
			if err := answer(ctx, &w); err != nil {
				return sum, err
			}
			sum.Committed += w.Committed
			sum.Stale += w.Stale
		}
		t.stale += sum.Stale
		return sum, nil
	}, nil
}

func (t *story) quietStart(ctx context.Context) error {
	wait, err := t.work(ctx, 150)
	if err != nil {
		return err
	}
	done, err := wait()
	if err != nil {
		return err
	}
	t.out.note("worker-a and worker-b took turns by lease and committed %d reports, each with its event; relay and consumer are running", done.Committed)
	return nil
}

// pos prints a position shortly: the epoch is a clock reading, of which the
// story needs only the end.
func pos(p fencing.Position) string { return fmt.Sprintf("(…%06d, %d)", p.Epoch%1_000_000, p.Token) }

func (t *story) pausedBeforeTheGate(ctx context.Context) error {
	t.out.scene("A holder is suspended before it commits, and wakes up after its lease was taken over")
	net := t.networks[0]
	held, r, err := t.hold(ctx, t.a, net)
	if err != nil {
		return err
	}
	answer, err := t.a.begin("commit", commitArgs{Key: net, ID: r.ID, Hold: "before"})
	if err == nil {
		err = t.a.reaches(ctx, "before the gate")
	}
	if err == nil {
		err = t.a.pause()
	}
	if err != nil {
		return err
	}
	t.out.say("worker-a holds %s under %s and is stopped (SIGSTOP) with its result for %s in hand", net, pos(held), r.ID)
	var taken acquireAnswer
	if err := t.b.call(ctx, "acquire", net, &taken); err != nil {
		return err
	}
	t.out.say("its lease runs out: worker-b takes %s over under %s; it has written nothing yet", net, pos(taken.Position))
	var o outcome
	if err := errors.Join(t.a.resume(), t.a.proceed("before the gate")); err != nil {
		return err
	}
	if err := answer(ctx, &o); err != nil {
		return err
	}
	if err := t.refusedAsStale(ctx, o, r.ID); err != nil {
		return err
	}
	t.out.say("worker-a wakes up and commits under %s: %s, the fence is at %s; nothing was written", pos(held), t.out.answer("stale"), pos(taken.Position))
	return t.finish(ctx, t.b, net, r.ID)
}

func (t *story) pausedBehindTheGate(ctx context.Context) error {
	t.out.scene("A holder is suspended in the middle of its commit, with the fence locked")
	net := t.networks[1]
	held, r, err := t.hold(ctx, t.b, net)
	if err != nil {
		return err
	}
	answer, err := t.b.begin("commit", commitArgs{Key: net, ID: r.ID, Hold: "after"})
	if err == nil {
		err = t.b.reaches(ctx, "behind the gate")
	}
	if err == nil {
		err = t.b.pause()
	}
	if err != nil {
		return err
	}
	stopped := time.Now()
	t.out.say("worker-b passes the gate of %s under %s and is stopped (SIGSTOP) inside its transaction", net, pos(held))
	var taken acquireAnswer
	if err := t.a.call(ctx, "acquire", net, &taken); err != nil {
		return err
	}
	t.out.say("the database ends its session by the gate's timeout; after %.1f s worker-a has %s under %s", time.Since(stopped).Seconds(), net, pos(taken.Position))
	var o outcome
	if err := errors.Join(t.b.resume(), t.b.proceed("behind the gate")); err != nil {
		return err
	}
	if err := answer(ctx, &o); err != nil {
		return err
	}
	if o.Answer == "committed" || o.Answer == "replayed" {
		return fmt.Errorf("worker-b committed %s after its session was ended: %+v", r.ID, o)
	}
	t.out.say("worker-b wakes up and goes on with its transaction: %s", t.out.answer(o.Answer))
	if err := t.b.call(ctx, "commit", commitArgs{Key: net, ID: r.ID}, &o); err != nil {
		return err
	}
	if err := t.refusedAsStale(ctx, o, r.ID); err != nil {
		return err
	}
	t.out.say("it retries under %s: %s, the fence is at %s; nothing was written", pos(held), t.out.answer("stale"), pos(taken.Position))
	return t.finish(ctx, t.a, net, r.ID)
}

func (t *story) lostAnswers(ctx context.Context) error {
	t.out.scene("The answer to a COMMIT is lost on the network")
	net := t.networks[2]
	held, r, err := t.hold(ctx, t.a, net)
	if err != nil {
		return err
	}
	if err := t.expect(ctx, t.a, commitArgs{Key: net, ID: r.ID, Drop: true}, "unknown outcome"); err != nil {
		return err
	}
	t.out.say("worker-a commits %s under %s, and the connection breaks: %s", r.ID, pos(held), t.out.answer("unknown outcome"))
	if err := t.expect(ctx, t.a, commitArgs{Key: net, ID: r.ID}, "replayed"); err != nil {
		return err
	}
	t.out.say("it asks again with the same token and content: %s, it had committed", t.out.answer("replayed"))

	if r, err = t.next(ctx, net); err != nil {
		return err
	}
	if err := t.expect(ctx, t.a, commitArgs{Key: net, ID: r.ID, Drop: true}, "unknown outcome"); err != nil {
		return err
	}
	if err := t.a.call(ctx, "release", net, nil); err != nil {
		return err
	}
	var taken acquireAnswer
	if err := t.b.call(ctx, "acquire", net, &taken); err != nil {
		return err
	}
	if err := t.expect(ctx, t.a, commitArgs{Key: net, ID: r.ID}, "replayed"); err != nil {
		return err
	}
	t.out.say("once more with %s, and worker-b takes over under %s before worker-a asks again: %s, not stale", r.ID, pos(taken.Position), t.out.answer("replayed"))
	return t.b.call(ctx, "release", net, nil)
}

func (t *story) otherContent(ctx context.Context) error {
	t.out.scene("Two different results under the same name")
	net := t.networks[3]
	held, r, err := t.hold(ctx, t.b, net)
	if err != nil {
		return err
	}
	if err := t.expect(ctx, t.b, commitArgs{Key: net, ID: r.ID}, "committed"); err != nil {
		return err
	}
	if err := t.expect(ctx, t.b, commitArgs{Key: net, ID: r.ID, Other: true}, "conflict"); err != nil {
		return err
	}
	t.out.say("worker-b has committed %s under %s and sends other content under the same token and step: %s; the first one stands", r.ID, pos(held), t.out.answer("conflict"))
	return t.b.call(ctx, "release", net, nil)
}

func (t *story) killedRelay(ctx context.Context) error {
	t.out.scene("The relay is killed between Kafka's acknowledgement and its own bookkeeping")
	if err := t.relay.call(ctx, "hold", nil, nil); err != nil {
		return err
	}
	wait, err := t.work(ctx, len(t.reports))
	if err != nil {
		return err
	}
	if err := t.relay.reaches(ctx, "acknowledged"); err != nil {
		return err
	}
	t.relay.kill()
	t.out.say("relay-1 has Kafka's acknowledgement and is killed (SIGKILL) before it has noted so")
	if t.relay, err = t.cast.start(ctx, t.child("relay", "relay-2", "relay", t.input)); err != nil {
		return err
	}
	if _, err := wait(); err != nil {
		return err
	}
	t.out.say("both workers go on meanwhile, until all %d reports are committed", len(t.reports))
	if err := t.settle(ctx); err != nil {
		return err
	}
	log, err := t.readTopic(ctx)
	if err != nil {
		return err
	}
	if log.copies() == 0 {
		return errors.New("relay-2 has published nothing twice: the scene didn't take place")
	}
	t.out.say("relay-2 takes over and goes on from the last checkpoint: %d events are in Kafka twice, none is missing", log.copies())
	t.out.say("the consumer applied %d and refused %d as %s", t.counted()["applied"], t.counted()["duplicate"], t.out.answer("duplicate"))
	return nil
}

func (t *story) lateCopy(ctx context.Context) error {
	t.out.scene("A late copy of an old event arrives after newer ones")
	log, err := t.readTopic(ctx)
	if err != nil {
		return err
	}
	net := t.networks[0]
	first := log.first(net)
	if first == nil {
		return fmt.Errorf("no event of %s is in the topic", net)
	}
	before := t.counted()
	late := &kgo.Record{Topic: t.topic, Partition: first.Partition, Key: first.Key, Value: first.Value, Headers: first.Headers, Timestamp: first.Timestamp}
	if err := t.kafka.ProduceSync(ctx, late).FirstErr(); err != nil {
		return fmt.Errorf("publish the late copy: %w", err)
	}
	if err := t.settle(ctx); err != nil {
		return err
	}
	after := t.counted()
	if after["applied"] != before["applied"] || after["duplicate"] != before["duplicate"]+1 {
		return fmt.Errorf("the late copy was not refused as a duplicate: before %v, after %v", before, after)
	}
	t.out.say("event 1 of %s comes again at offset %d, behind event %d: %s", net, late.Offset, log.last(net), t.out.answer("duplicate"))
	return nil
}

func (t *story) rewoundGroup(ctx context.Context) error {
	t.out.scene("The consumer group is rewound to the beginning")
	if err := t.endConsumer(ctx); err != nil {
		return err
	}
	total, err := t.rewind(ctx)
	if err != nil {
		return err
	}
	if t.consumer, err = t.cast.start(ctx, t.child("consumer", "quake-report-2", "consumer", t.input)); err != nil {
		return err
	}
	err = t.until(ctx, "the consumer to read everything again", func() (bool, string, error) {
		c := t.consumer.counted()
		seen := c["duplicate"] + c["applied"] + c["stale"]
		return seen >= total, fmt.Sprintf("%d of %d records", seen, total), nil
	})
	if err != nil {
		return err
	}
	c := t.consumer.counted()
	if c["applied"] != 0 {
		return fmt.Errorf("after the rewind %d events were applied again", c["applied"])
	}
	t.out.say("it reads all %d records again: %d applied, %d refused as %s", total, c["applied"], c["duplicate"], t.out.answer("duplicate"))
	return t.settle(ctx)
}

// What the scenes are made of.

// hold lets a worker take a network, and picks the next report of it.
func (t *story) hold(ctx context.Context, w *child, net string) (fencing.Position, quakes.Report, error) {
	var got acquireAnswer
	if err := w.call(ctx, "acquire", net, &got); err != nil {
		return got.Position, quakes.Report{}, err
	}
	r, err := t.next(ctx, net)
	return got.Position, r, err
}

func (t *story) next(ctx context.Context, net string) (quakes.Report, error) {
	for _, r := range t.reports {
		if r.Net != net {
			continue
		}
		var done bool
		if err := t.pool.QueryRow(ctx, "select exists (select from "+schema.Quote(t.workSchema)+".result where id = $1)", r.ID).Scan(&done); err != nil {
			return r, err
		}
		if !done {
			return r, nil
		}
	}
	return quakes.Report{}, fmt.Errorf("all reports of %s are committed already", net)
}

// expect sends a commit and insists on its answer.
func (t *story) expect(ctx context.Context, w *child, a commitArgs, answer string) error {
	var o outcome
	if err := w.call(ctx, "commit", a, &o); err != nil {
		return err
	}
	if o.Answer != answer {
		return fmt.Errorf("%s commits %s: %s %s, want %s", w.name, a.ID, o.Answer, o.Text, answer)
	}
	return nil
}

// refusedAsStale insists that a commit was, and that nothing of it is there.
func (t *story) refusedAsStale(ctx context.Context, o outcome, id string) error {
	if o.Answer != "stale" {
		return fmt.Errorf("commit of %s under %s: %s %s, want stale", id, o.Position, o.Answer, o.Text)
	}
	t.stale++
	var written int
	err := t.pool.QueryRow(ctx, `select (select count(*) from `+schema.Quote(t.workSchema)+`.result where id = $1)
		+ (select count(*) from `+schema.Quote(t.schema)+`.receipt where step = $1)
		+ (select count(*) from `+schema.Quote(t.schema)+`.outbox where subject = $1)`, id).Scan(&written)
	if err == nil && written != 0 {
		err = fmt.Errorf("the stale commit of %s has left %d rows", id, written)
	}
	return err
}

// finish lets the new holder commit what the old one could not, and give the
// network back.
func (t *story) finish(ctx context.Context, w *child, net, id string) error {
	if err := t.expect(ctx, w, commitArgs{Key: net, ID: id}, "committed"); err != nil {
		return err
	}
	t.out.say("%s commits %s itself", w.name, id)
	return w.call(ctx, "release", net, nil)
}

// counted is what all consumers have decided so far.
func (t *story) counted() totals {
	sum := totals{}
	maps.Copy(sum, t.counts)
	for k, v := range t.consumer.counted() {
		sum[k] += v
	}
	return sum
}

func (t *story) endConsumer(ctx context.Context) error {
	if err := t.consumer.stop(ctx); err != nil {
		return fmt.Errorf("stop the consumer: %w", err)
	}
	for k, v := range t.consumer.counted() {
		t.counts[k] += v
	}
	return nil
}

// until polls for something to become true, and says how far it had come when
// it gives up.
func (g *stage) until(ctx context.Context, what string, reached func() (bool, string, error)) error {
	deadline := time.Now().Add(90 * time.Second)
	for {
		ok, state, err := reached()
		if err != nil || ok {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited too long for %s: %s", what, state)
		}
		g.out.progress("waiting for %s: %s", what, state)
		select {
		case <-time.After(40 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *story) keep(ctx context.Context) {
	t.out.note("\nEverything stays until Ctrl-C. In another terminal:")
	for _, s := range t.look() {
		t.out.say("%s", s)
	}
	<-ctx.Done()
}

// look is what to type to look around. A connection string that was given is not
// repeated: it may have a password.
func (g *stage) look() []string {
	lines := []string{fmt.Sprintf("export FENCELINE_KAFKA_BROKERS=%s FENCELINE_SCHEMA=%s", config.Typed(strings.Join(g.brokers, ",")), g.schema)}
	if g.given {
		lines = append(lines, "# and FENCELINE_POSTGRES_DSN, the connection string that you have given")
	} else {
		lines = append(lines, "export FENCELINE_POSTGRES_DSN="+config.Typed(g.dsn))
	}
	return append(lines,
		"go run ./cmd/relay status",
		"go run ./cmd/demo-consumer report -model-schema "+g.modelSchema,
		fmt.Sprintf(`psql "$FENCELINE_POSTGRES_DSN" -c 'select key, epoch, token, step, committed_at from %s.receipt order by committed_at desc limit 5'`, g.schema))
}
