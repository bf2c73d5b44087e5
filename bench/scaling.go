package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/relay"
)

// brokerDelay is how late the broker answers. Relays of one machine share its
// processors, so that what is looked for shows only where they wait for most of
// the time: with this delay one relay, which has one request of 500 records at a
// time on its way to each of four partitions, makes at most 5,000 events a
// second.
const brokerDelay = 400 * time.Millisecond

// farStack is the same PostgreSQL with a Kafka of its own, whose every client
// goes through the proxy.
type farStack struct {
	*stack
	proxy *slowProxy
}

func startFar(ctx context.Context, s *stack, say func(string, ...any)) (_ *farStack, err error) {
	far := &farStack{stack: &stack{postgres: s.postgres, pool: s.pool, relay: s.relay}}
	defer func() {
		if err != nil {
			err = errors.Join(err, far.close())
		}
	}()
	if far.proxy, err = newSlowProxy(); err != nil {
		return far, err
	}
	properties := maps.Clone(kafkaProperties)
	properties["advertised.listeners"] = "PLAINTEXT://" + far.proxy.addr()
	far.kafka, err = apachekafka.Start(ctx, apachekafka.Config{MaxHeapMB: 512, Properties: properties, Progress: func(text string) { say("%s", text) }})
	if err != nil {
		return far, err
	}
	far.proxy.to(far.kafka.Addr())
	// Who looks on goes past the proxy, whatever address the broker gives.
	direct := kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, far.kafka.Addr())
	})
	if far.client, err = kgo.NewClient(kgo.SeedBrokers(far.kafka.Addr()), direct); err != nil {
		return far, err
	}
	far.admin = kadm.NewClient(far.client)
	return far, nil
}

func (f *farStack) close() error {
	if f.client != nil {
		f.client.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var errs []error
	if f.kafka != nil {
		errs = append(errs, f.kafka.Stop(ctx))
	}
	if f.proxy != nil {
		errs = append(errs, f.proxy.close())
	}
	return errors.Join(errs...)
}

// scale lets some relays share a backlog that appears all at once.
func (f *farStack) scale(ctx context.Context, w workload, instances, n int) (_ result, err error) {
	f.proxy.setDelay(0)
	at, err := f.place(ctx, "scaling", n, migrateFenceline)
	if err != nil {
		return result{}, err
	}
	defer at.leave()
	j := at.job()
	j.kafka = f.proxy.addr()
	var relays []*childProcess
	defer func() {
		for _, c := range relays {
			c.kill()
		}
	}()
	for range instances {
		c, err := f.startChild("fenceline", j)
		if err != nil {
			return result{}, err
		}
		relays = append(relays, c)
		if err := c.begin(); err != nil {
			return result{}, err
		}
	}
	if err := awaitShares(ctx, at.pool, instances); err != nil {
		return result{}, err
	}
	f.proxy.setDelay(brokerDelay)
	if err := at.do(ctx, func(ctx context.Context, conn *pgx.Conn) error { return insertFenceline(ctx, conn, w, at.topic) }); err != nil {
		return result{}, err
	}
	var mile milestones
	cpu := func() (d time.Duration) {
		for _, c := range relays {
			d += cpuOf(c.pid())
		}
		return d
	}
	client, server, broker := cpu(), cpuOf(f.postgres.PID()), cpuOf(f.kafka.PID())
	for patience := time.Now().Add(2 * time.Minute); ; {
		got, err := f.arrived(ctx, at.topic)
		if err != nil {
			return result{}, err
		}
		mile.pass(time.Now(), got, int64(w.Events))
		if got >= int64(w.Events) {
			break
		}
		if time.Now().After(patience) {
			return result{}, fmt.Errorf("%d of %d events have arrived after two minutes", got, w.Events)
		}
		pause(ctx, 10*time.Millisecond)
	}
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(w.Events) }
	res := result{figures: map[string]float64{"rate": mile.rate(1, 2), "whole": mile.rate(0, 3),
		"client": per(cpu() - client), "server": per(cpuOf(f.postgres.PID()) - server), "broker": per(cpuOf(f.kafka.PID()) - broker)}}
	var peak int64
	for _, c := range relays {
		peak = max(peak, peakOf(c.pid()))
	}
	res.figures["peak"] = float64(peak) / (1 << 20)
	f.proxy.setDelay(0)
	v, err := f.check(ctx, at.topic, w.counts())
	res.verdict = &v
	return res, err
}

// milestones are when the first record of a backlog had arrived, a tenth of them,
// nine tenths, and all.
type milestones [4]struct {
	at  time.Time
	got int64
}

// pass notes that so many of all have arrived.
func (m *milestones) pass(now time.Time, got, all int64) {
	for i, least := range []int64{1, all / 10, all - all/10, all} {
		if m[i].at.IsZero() && got >= least {
			m[i].at, m[i].got = now, got
		}
	}
}

// rate is the number of records a second between two of them.
func (m *milestones) rate(from, to int) float64 {
	return float64(m[to].got-m[from].got) / m[to].at.Sub(m[from].at).Seconds()
}

// awaitShares waits until the relays have shared the shards out evenly.
func awaitShares(ctx context.Context, pool *pgxpool.Pool, instances int) error {
	for patience := time.Now().Add(time.Minute); ; {
		var holders, least, all int
		err := pool.QueryRow(ctx, `select count(*), coalesce(min(n), 0), coalesce(sum(n), 0) from
			(select count(*) n from fenceline.lease where starts_with(key, $1) and key <> $2 and expires_at > clock_timestamp() group by holder) h`, relay.LeasePrefix, relay.RetentionKey).Scan(&holders, &least, &all)
		if err != nil {
			return err
		}
		if holders == instances && all == 64 && least == 64/instances {
			return nil
		}
		if time.Now().After(patience) {
			return fmt.Errorf("after a minute %d relays have %d shards, the one with the fewest %d", holders, all, least)
		}
		pause(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (b *bench) scaling(ctx context.Context) (*figures, error) {
	w := b.size.Drain
	w.Events, w.Keys = b.size.Scaling, 10_000
	w.Transaction = w.Events // all of it becomes visible at the same moment
	f := &figures{ID: "scaling", Title: "More relays", Bars: "ratio", Ours: true,
		Text: fmt.Sprintf("A backlog of %d events of %d keys is committed at once, and drained by some instances of the relay, processes of their own, over a broker that answers %d ms late (a proxy holds its answers back). With it an instance waits for most of the time; without it they would compete for this machine's processors. Timed, for every arm alike, from when a tenth has arrived to when nine tenths have: before that, each instance connects to each partition over that slow broker, and afterwards some of its lanes are empty while others still work; from the first record to the last is beside it.", w.Events, w.Keys, brokerDelay.Milliseconds()),
		Columns: []column{{Key: "ratio", Title: "of one", Digits: 2, RatioOf: "rate"}, {Key: "rate", Title: "events/s", Brief: true}, {Key: "whole_ratio", Title: "first to last, of one", Digits: 2, RatioOf: "whole"}, {Key: "whole", Title: "events/s", Brief: true},
			{Key: "client", Title: "client CPU µs an event", Digits: 1, Brief: true}, {Key: "server", Title: "PostgreSQL", Digits: 1, Brief: true}, {Key: "broker", Title: "Kafka", Digits: 1, Brief: true}, {Key: "peak", Title: "peak MiB of an instance", Brief: true}}}
	b.say("scaling: starting a Kafka behind a proxy")
	far, err := startFar(ctx, b.stack, b.say)
	if err != nil {
		return f, err
	}
	n := 0
	one := "one instance"
	var trials []trial
	for _, instances := range []int{1, 2, 4} {
		name := map[int]string{1: one, 2: "two", 4: "four"}[instances]
		trials = append(trials, trial{name, "relay run, as it comes", one, func(ctx context.Context) (result, error) {
			n++
			return far.scale(ctx, w, instances, n)
		}})
	}
	err = f.measure(ctx, trials, b.size.ScalingRounds, b.say)
	return f, errors.Join(err, far.close())
}
