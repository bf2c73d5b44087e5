package migrations

import (
	"context"
	"testing"
)

// all are the shards, as an array.
const all = `array(select s::smallint from generate_series(0, 63) s)`

func (b *bundle) shards(t *testing.T) *Migrator {
	t.Helper()
	m := b.migrator(embedded)
	b.up(m, UpOptions{Parts: []Part{Producer}})
	return m
}

func (b *bundle) checkpoint(shards, s1, s2 string, low, last string) {
	b.exec(`insert into @schema@.relay_checkpoint (shards, epoch, token, s1, low, s2, high, low2, last_pos, pair_low, pair_xid)
		values (` + shards + `, 1, 1, '` + s1 + `', ` + low + `, nullif('` + s2 + `', '')::pg_snapshot, 100, ` + low + `, ` + last + `, 0, '3')`)
}

func (b *bundle) toOneCursor(m *Migrator) {
	b.down(m, DownOptions{Part: Producer, To: 6})
}

const oneCursor = `select coalesce(string_agg(s1::text || ' ' || low || ' ' || coalesce(s2::text, '-') || ' ' || last_pos, ', '), 'none') from @schema@.relay_checkpoint`

const theForks = `select coalesce(string_agg(topic || ' ' || s1::text || ' ' || coalesce(s2::text, '-') || ' ' || last_pos, ', ' order by topic), 'none') from @schema@.relay_fork`

func TestTheOldestCursorIsLeftWhenTheShardsGo(t *testing.T) {
	for name, c := range map[string]struct {
		fill func(b *bundle)
		want string
	}{
		"one for all, inside a window": {func(b *bundle) {
			b.checkpoint(all, "10:10:", "", "1", "0")
			b.checkpoint(all, "20:20:", "30:30:", "5", "17")
		}, "20:20: 5 30:30: 17"},
		"groups inside one window": {func(b *bundle) {
			b.checkpoint(all, "20:20:", "30:30:", "5", "17")
			b.checkpoint("'{3,4}'", "20:20:", "30:30:", "5", "11")
		}, "20:20: 5 30:30: 11"},
		"an older one among them": {func(b *bundle) {
			b.checkpoint(all, "20:20:", "", "5", "0")
			b.checkpoint("'{3,4}'", "10:20:10", "30:30:", "4", "17")
		}, "10:20:10 4 - 0"},
		"a newer generation of the older one": {func(b *bundle) {
			b.checkpoint("'{3,4}'", "10:10:", "", "1", "0")
			b.checkpoint(all, "20:20:", "", "5", "0")
		}, "20:20: 5 - 0"},
		"a shard that was never published": {func(b *bundle) {
			b.checkpoint("'{3,4}'", "10:10:", "", "1", "0")
		}, "none"},
		"nothing": {func(*bundle) {}, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			m := b.shards(t)
			c.fill(b)
			b.toOneCursor(m)
			equal(t, b.one(oneCursor), c.want)
			// And up again: what is left is everybody's.
			b.up(m, UpOptions{Parts: []Part{Producer}})
			equal(t, b.one(oneCursor), c.want)
			b.checkpoint(all, "40:40:", "", "9", "0") // the sequence goes on behind what is there
			equal(t, b.one(`select s1::text from @schema@.relay_checkpoint order by n desc limit 1`), "40:40:")
		})
	}
}

func TestForksOfShardsAndPartitionsBecomeForksOfTheirTopicWhenTheShardsGo(t *testing.T) {
	b := setup(t)
	m := b.shards(t)
	fork := func(topic, partition, partitions, shards, s1, s2, last string) {
		b.exec(`insert into @schema@.relay_fork (topic, partition, partitions, shards, s1, low, s2, high, low2, last_pos, reason, detail)
			values ('` + topic + `', ` + partition + `, ` + partitions + `, ` + shards + `, '` + s1 + `', 0, nullif('` + s2 + `', '')::pg_snapshot, 9, 0, ` + last + `, '', '')`)
	}
	low, high := `array(select s::smallint from generate_series(0, 31) s)`, `array(select s::smallint from generate_series(32, 63) s)`
	b.checkpoint(all, "50:50:", "", "5", "0")
	fork("halves", "null", "null", low, "30:30:", "", "0")
	fork("halves", "null", "null", high, "20:20:", "40:40:", "7")
	fork("one", "null", "null", all, "30:30:", "40:40:", "7")
	fork("newer", "null", "null", all, "60:60:", "", "0")
	fork("partition", "2", "6", all, "30:30:", "40:40:", "7")
	fork("part of a topic, newer", "null", "null", low, "60:60:", "", "0") // the main cursor reads it again
	b.toOneCursor(m)
	equal(t, b.one(theForks), "halves 20:20: - 0, newer 60:60: - 0, one 30:30: 40:40: 7, partition 30:30: - 0")
}

func TestADownStepThatCarriesValuesOverIsNoLossAndOthersAre(t *testing.T) {
	b := setup(t)
	m := b.shards(t)
	b.checkpoint(all, "20:20:", "", "5", "0")
	b.exec(`insert into @schema@.relay_instance (id, name, holder, expires_at) values ('00000000-0000-0000-0000-000000000001', 'a', 'a', now())`)
	if _, err := m.Down(context.Background(), DownOptions{Part: Producer, To: 6}); err != nil {
		t.Fatal(err)
	}
	equal(t, b.one(oneCursor), "20:20: 5 - 0")
}
