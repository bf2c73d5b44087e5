package relay

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/outbox"
)

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// load reads where the last sessions got to, whoever's they were.
func (s *session) load(ctx context.Context) error {
	conn := s.reader.conn
	if err := s.sameCluster(ctx, conn); err != nil {
		return err
	}
	own := s.shards.list()
	var stored []int64
	if err := conn.QueryRow(ctx, s.sql.loadPair, own).Scan(&s.bound.low, &stored); err != nil {
		return fmt.Errorf("relay: load the cursors: %w", err)
	}
	s.stored, s.storedLow = [][]int64{stored}, s.bound.low
	if err := s.loadCursors(ctx, conn, own); err != nil {
		return fmt.Errorf("relay: load the cursors: %w", err)
	}
	rows, err := conn.Query(ctx, s.sql.loadHeld)
	if err == nil {
		var h HeldStream
		_, err = pgx.ForEachRow(rows, []any{&h.Topic, &h.Key, &h.Pos, &h.Epoch, &h.Seq, &h.Reason, &h.Detail, &h.Since}, func() error {
			if s.shards.has(outbox.Shard(h.Key)) {
				s.held[streamKey{h.Topic, h.Key}] = &hold{HeldStream: h, recorded: true, limit: limitIn(h.Reason)}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("relay: load held streams: %w", err)
	}
	if err := s.loadForks(ctx, conn, own); err != nil {
		return fmt.Errorf("relay: load forks: %w", err)
	}
	if s.cfg.signals.loaded != nil {
		s.cfg.signals.loaded(s.main.acked)
	}
	return nil
}

// loadCursors makes a flow of all shards that stand at one place. The furthest
// is the main one: it takes the snapshots, and the others catch up with it.
func (s *session) loadCursors(ctx context.Context, conn querier, own []int) error {
	rows, err := conn.Query(ctx, s.sql.loadCursors, own)
	if err != nil {
		return err
	}
	flows := []*flow{}
	add := func(shards shardSet, at cursor) {
		for _, f := range flows {
			if f.acked.spot() == at.spot() {
				f.shards |= shards
				f.acked = f.acked.merge(at)
				f.read = f.acked
				return
			}
		}
		flows = append(flows, &flow{shards: shards, read: at, acked: at})
	}
	rest := s.shards
	var list []int
	var n int64
	var c cursor
	var s1, s2 string
	_, err = pgx.ForEachRow(rows, []any{&list, &n, &s1, &c.low, &s2, &c.high, &c.low2, &c.last}, func() error {
		at, err := c.withSnapshots(s1, s2)
		add(shardsOf(list), at)
		rest &^= shardsOf(list)
		return err
	})
	if err != nil {
		return err
	}
	if rest != 0 { // never published
		add(rest, start())
	}
	main := slices.MaxFunc(flows, func(a, b *flow) int {
		switch {
		case a.acked.older(b.acked):
			return -1
		case b.acked.older(a.acked):
			return 1
		}
		return a.shards.len() - b.shards.len()
	})
	s.main = *main
	for _, f := range flows {
		if f != main {
			s.forks = append(s.forks, &fork{flow: *f, partition: -1})
		}
	}
	return nil
}

// loadForks loads those of our shards: what a row has of others is another
// instance's.
func (s *session) loadForks(ctx context.Context, conn querier, own []int) error {
	rows, err := conn.Query(ctx, s.sql.loadForks, own)
	if err != nil {
		return err
	}
	var f fork
	var list []int
	var c cursor
	var s1, s2 string
	_, err = pgx.ForEachRow(rows, []any{&f.topic, &f.partition, &f.partitions, &list, &s1, &c.low, &s2, &c.high, &c.low2, &c.last, &f.reason, &f.detail, &f.since}, func() error {
		at, err := c.withSnapshots(s1, s2)
		if err != nil {
			return err
		}
		shards := shardsOf(list) & s.shards
		for _, o := range s.forks {
			if o.topic == f.topic && o.partition == f.partition && o.partitions == f.partitions && o.flow.acked.spot() == at.spot() {
				o.flow.shards |= shards
				o.flow.acked = o.flow.acked.merge(at)
				o.flow.read = o.flow.acked
				return nil
			}
		}
		one := f
		one.flow = flow{shards: shards, read: at, acked: at}
		s.forks = append(s.forks, &one)
		return nil
	})
	s.orderForks()
	return err
}

// orderForks says which of two partitions' forks has the rows that can be in both, as
// they can where the topic had another number of partitions in between: the first one.
// One of the two had them before, and the other has passed them, published or not. The
// one that stands further behind has passed none that is unpublished. Of two windows
// neither has to be behind the other, their beginnings have; what is published in
// between comes twice.
func (s *session) orderForks() {
	two := false
	for _, f := range s.forks {
		if slices.ContainsFunc(s.forks, f.overlaps) {
			two = true
			f.flow.acked = f.flow.acked.floor()
			f.flow.read = f.flow.acked
		}
	}
	if !two {
		return
	}
	slices.SortStableFunc(s.forks, func(a, b *fork) int {
		switch {
		case a.rank() < 3 || b.rank() < 3:
			return cmp.Compare(a.rank(), b.rank())
		case a.flow.acked.older(b.flow.acked):
			return -1
		case b.flow.acked.older(a.flow.acked):
			return 1
		}
		return 0
	})
}

// sameCluster refuses transaction ids that this cluster has not given out yet:
// they came with a dump from another one. Under them, events would count as
// published that are not, and nothing would say so.
func (s *session) sameCluster(ctx context.Context, conn *pgx.Conn) error {
	var newest, next int64
	if err := conn.QueryRow(ctx, s.sql.newestXid).Scan(&newest); err != nil {
		return fmt.Errorf("relay: look at the newest transaction: %w", err)
	}
	if err := conn.QueryRow(ctx, s.sql.nextXid).Scan(&next); err != nil {
		return fmt.Errorf("relay: look at the next transaction: %w", err)
	}
	if newest < next {
		return nil
	}
	return &SettingError{"transaction id in " + s.cfg.Schema + ".outbox or relay_checkpoint", fmt.Sprintf("%d, ahead of the cluster's next one, %d", newest, next),
		fmt.Sprintf("the data came from another cluster, and events would be passed over; an operator runs select %s.history_restamp(), and everything in the outbox is published again", s.cfg.Schema)}
}

func (c cursor) withSnapshots(s1, s2 string) (_ cursor, err error) {
	if c.s1, err = parseSnapshot(s1); err == nil && s2 != "" {
		c.s2, err = parseSnapshot(s2)
	}
	return c, err
}
