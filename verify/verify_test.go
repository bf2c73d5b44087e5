package verify_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/verify"
)

// story is a world in which all parts agree: takeovers, lives, copies.
func story(t testing.TB) *world {
	w := newWorld(t)
	w.append("a", "1", "2", "3")
	w.append("b", "1")
	w.takeOver("a")
	w.append("a", "4", "5")
	w.append("c", "1", "2")
	if _, err := w.leases["c"].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	delete(w.leases, "c")
	if _, err := w.fences.Open(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	w.append("c", "3", "4")
	w.append("d", "1")
	if _, err := w.leases["d"].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	delete(w.leases, "d")
	w.publish()
	p, i := w.log.find(t, "a", 3)
	again := w.log.topics[topic][p][i]
	again.Offset = w.log.topics[topic][p][len(w.log.topics[topic][p])-1].Offset + 1
	w.log.topics[topic][p] = append(w.log.topics[topic][p], again)
	w.consume()
	// The copy is no step forward.
	w.exec(`update fenceline.guard set seq = 5, token = (select max(token) from fenceline.outbox where key = 'a') where key = 'a'`)
	return w
}

// A key goes on in another partition then, and what it had stays where it was.
func TestAnAcceptedPartitionCountIsNoDisagreement(t *testing.T) {
	t.Parallel()
	const grown = 7
	w := newWorld(t)
	var keys []string
	for i := range 12 {
		keys = append(keys, fmt.Sprint("k", i))
		w.append(keys[i], "1", "2")
	}
	w.publish()
	w.log.topics[topic] = append(w.log.topics[topic], make([][]verify.LogRecord, grown-partitions)...)
	alone := func(c *verify.Config) { c.Consumers = nil }
	if _, all := w.verify(alone); kinds(all) != "misplaced" {
		t.Errorf("before it was accepted: %v", all)
	}
	w.exec("insert into fenceline.relay_topic (topic, partitions) values ($1, $2)", topic, partitions)
	w.exec("select fenceline.relay_topic_accept($1, $2, true, 'operator', '')", topic, grown)
	moved := map[bool]int{} // by whether the new partition is read before the old one
	for _, k := range keys {
		w.append(k, "3", "4")
		if from, to := outbox.Partition([]byte(k), partitions), outbox.Partition([]byte(k), grown); from != to {
			moved[to < from]++
		}
	}
	if moved[true] == 0 || moved[false] == 0 {
		t.Fatalf("the keys don't try both: %v", moved)
	}
	w.publish()
	// What is noted else pushes out of the audit what was noted before, but not this.
	w.exec("select count(fenceline._relay_audit('operator', 'held retry', 't', 'k', '{}')) from generate_series(1, 10050)")
	if report, all := w.verify(alone); len(all) != 0 || report.Records != 4*12 {
		t.Errorf("%v, %+v", all, report)
	}

	// The old records leave the topic before they leave the outbox.
	w.log.cut = map[int]int64{}
	for p := range partitions {
		w.log.topics[topic][p] = slices.DeleteFunc(w.log.topics[topic][p], func(l verify.LogRecord) bool {
			old := parse(t, topic, l).Seq <= 2
			if old {
				w.log.cut[p] = l.Offset + 1
			}
			return old
		})
	}
	report, all := w.verify(alone)
	if len(all) != 0 || report.Uncovered != 2*12 {
		t.Errorf("with the old records gone: %v, %+v", all, report)
	}

	// A new event in an old partition is nobody's of ours.
	for _, k := range keys {
		from, to := outbox.Partition([]byte(k), partitions), outbox.Partition([]byte(k), grown)
		if from == to {
			continue
		}
		log := w.log.topics[topic]
		i := slices.IndexFunc(log[to], func(l verify.LogRecord) bool { r := parse(t, topic, l); return r.Key == k && r.Seq == 4 })
		l := log[to][i]
		log[to] = slices.Delete(log[to], i, i+1)
		l.Offset = w.log.cut[from] + int64(len(log[from]))
		log[from] = append(log[from], l)
		break
	}
	if _, all := w.verify(alone); !strings.Contains(kinds(all), "misplaced") {
		t.Errorf("a new event in an old partition: %v", all)
	}
}

func TestPartsThatAgreeGiveNoFinding(t *testing.T) {
	t.Parallel()
	w := story(t)
	report, all := w.verify()
	for _, f := range all {
		t.Error(f)
	}
	if report.Streams != 4 || report.Events != 13 || report.Records != 14 || report.Copies != 1 || report.Guards != 4 || report.Waiting != 0 || report.Uncovered != 0 {
		t.Errorf("%+v", report)
	}
	// What is committed and not yet published is no disagreement.
	w.append("a", "6")
	if report, all = w.verify(); len(all) != 0 || report.Waiting != 1 {
		t.Errorf("%v, %+v", all, report)
	}
}

// A topic whose message.timestamp.type is LogAppendTime has the times at which the
// broker got the records.
func TestTheBrokersOwnTimestampsAreNoDisagreement(t *testing.T) {
	t.Parallel()
	w := story(t)
	for _, log := range w.log.topics[topic] {
		for i := range log {
			log[i].TimestampMS += int64(1000 * (i + 1))
		}
	}
	if report, all := w.verify(); report.Total() != 0 {
		t.Errorf("found: %v", all)
	}
}

// Each kind of disagreement is found, and called by its name. The comparison is
// the same whether a bucket has everything or a row.
func TestEachDisagreementIsFound(t *testing.T) {
	t.Parallel()
	edit := func(key string, seq int64, change func(w *world, log []verify.LogRecord, i int) []verify.LogRecord) func(*world) {
		return func(w *world) {
			p, i := w.log.find(w, key, seq)
			w.log.topics[topic][p] = change(w, slices.Clone(w.log.topics[topic][p]), i)
		}
	}
	rewrite := func(key string, seq int64, change func(*outbox.Record)) func(*world) {
		return edit(key, seq, func(w *world, log []verify.LogRecord, i int) []verify.LogRecord {
			r := parse(w, topic, log[i])
			change(&r)
			at := log[i].Offset
			log[i] = wire(r)
			log[i].Offset = at
			return log
		})
	}
	remove := func(w *world, log []verify.LogRecord, i int) []verify.LogRecord { return slices.Delete(log, i, i+1) }
	sql := func(text string, args ...any) func(*world) { return func(w *world) { w.tamper(text, args...) } }
	for _, c := range []struct {
		name   string
		tamper func(*world)
		want   string // the kinds found, sorted
		detail string
	}{
		{"an event behind the cursor that was never published", edit("b", 1, remove), "lost", "the relay's cursor has passed it"},
		{"an event missing in the middle", edit("a", 2, remove), "hole lost", "the positions between are not there"},
		{"an event missing at the beginning", edit("a", 1, remove), "hole lost", "has none of the positions"},
		{"the first event of a new life missing", edit("c", 1, remove), "hole lost", "its life begins with seq 2"},
		{"the last event of a life missing", edit("c", 1, func(w *world, log []verify.LogRecord, i int) []verify.LogRecord {
			// i is the new life's first; the end record of the life before stands in front of it.
			return slices.DeleteFunc(log, func(l verify.LogRecord) bool {
				r := parse(w, topic, l)
				return r.Kind == outbox.KindEnd
			})
		}), "hole lost", "it says that the life before ended at"},
		{"two first copies in the wrong order", edit("a", 1, func(w *world, log []verify.LogRecord, i int) []verify.LogRecord {
			_, j := w.log.find(w, "a", 2)
			log[i], log[j] = log[j], log[i]
			log[i].Offset, log[j].Offset = log[j].Offset, log[i].Offset
			return log
		}), "order", "its first copy lies behind that of"},
		{"a record from an epoch that nobody has begun", rewrite("a", 2, func(r *outbox.Record) { r.Epoch, r.Seq = 1<<62, 1; r.History = 1 }), "hole lost phantom unapplied", "is not one of the outbox"},
		{"a token that falls", rewrite("a", 4, func(r *outbox.Record) { r.Token += 5 }), "content token", "has token"},
		{"another payload under the same position", rewrite("a", 2, func(r *outbox.Record) { r.Payload = []byte("other") }), "content", "not the same, byte by byte, as the outbox's row"},
		{"another header under the same position", rewrite("a", 2, func(r *outbox.Record) { r.Headers[0].Value = "other" }), "content", "not the same"},
		{"a record in a partition of another key", func(w *world) {
			p, i := w.log.find(w, "b", 1)
			log := w.log.topics[topic]
			l := log[p][i]
			log[p] = slices.Delete(slices.Clone(log[p]), i, i+1)
			q := (p + 1) % partitions
			l.Offset = int64(len(log[q]))
			log[q] = append(log[q], l)
		}, "misplaced", "its key belongs to partition"},
		{"a record that isn't ours", func(w *world) {
			log := w.log.topics[topic]
			log[0] = append(log[0], verify.LogRecord{Offset: 100, Key: []byte("k"), Value: []byte("v")})
		}, "unreadable", "ce_specversion is missing"},
		{"a topic that is gone", func(w *world) { delete(w.log.topics, topic) }, "no-topic", "Kafka doesn't have it"},
		{"a row that somebody has deleted", sql(`delete from fenceline.outbox where key = 'a' and seq = 3`), "gap phantom", "the outbox has nothing between seq 2 and seq 4"},
		{"the first row of a new life deleted", sql(`delete from fenceline.outbox where key = 'c' and seq = 1 and prev_seq is not null`), "gap phantom", "begins with seq 2"},
		{"the last row of a life deleted", sql(`delete from fenceline.outbox where key = 'c' and kind = 'end'`), "gap phantom", "it says that the life before ended at"},
		{"a row that was given another pos", sql(`update fenceline.outbox set pos = 1000000 where key = 'a' and seq = 1`), "gap", "has the larger pos"},
		{"a row that was given another token", sql(`update fenceline.outbox set token = 7 where key = 'a' and seq = 3`), "ahead content no-receipt token", "has token 7"},
		{"a row that somebody has put in twice", sql(`insert into fenceline.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, source)
			select gen_random_uuid(), aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, source from fenceline.outbox where key = 'a' and seq = 3`), "content gap", "has position"},
		{"a receipt that somebody has deleted", sql(`delete from fenceline.receipt where key = 'b'`), "no-receipt", "no receipt of"},
		{"a fence from before the events", sql(`update fenceline.fence set max_issued_token = 1 where key = 'a'`), "ahead", "the key's fence stands at"},
		{"a head that somebody has changed", sql(`update fenceline.head set seq = 9 where key = 'a'`), "head", "the remembered last position is"},
		{"a record of a stream that the outbox doesn't know", func(w *world) {
			w.tamper(`delete from fenceline.outbox where key = 'b'`)
			w.tamper(`delete from fenceline.head where key = 'b'`)
		}, "phantom", "has never heard of this stream"},
		// G of the consumer's histories: nobody was told of the restore, and no table can see it.
		{"a database that was restored to before the last event", func(w *world) {
			w.tamper(`delete from fenceline.outbox where key = 'a' and seq = 5`)
			w.tamper(`update fenceline.head set seq = 4 where key = 'a'`)
		}, "phantom", "the guard stands on a position that is not one of the outbox"},
		{"the same, its rows past their retention", func(w *world) {
			w.tamper(`delete from fenceline.outbox where key = 'a'`)
			w.tamper(`update fenceline.head set seq = 4 where key = 'a'`)
		}, "phantom", "says that the stream ended at"},
		{"the same, and the stream's end is not remembered", func(w *world) {
			w.tamper(`delete from fenceline.outbox where key = 'a' and seq = 5`)
			w.tamper(`delete from fenceline.head where key = 'a'`)
		}, "phantom", "the guard stands on a position"},
		{"a guard behind the end of a life that is over", func(w *world) {
			w.tamper(`update fenceline.guard set seq = 9, epoch = (select min(epoch) from fenceline.outbox where key = 'c') where key = 'c'`)
			w.tamper(`update fenceline.consumer_offset set next_offset = 0`)
			w.tamper(`delete from fenceline.outbox where key = 'c' and epoch = (select min(epoch) from fenceline.outbox where key = 'c')`)
			for p, log := range w.log.topics[topic] {
				w.log.topics[topic][p] = slices.DeleteFunc(slices.Clone(log), func(l verify.LogRecord) bool {
					r := parse(w, topic, l)
					return r.Key == "c" && r.Prev == nil && r.Seq < 4 && r.History != 0 || r.Key == "c" && r.Kind == outbox.KindEnd
				})
			}
		}, "phantom", "the guard stands on a position"},
		{"a marker that a strict consumer has not taken note of", sql(`update fenceline.guard set seq = 1 where key = 'd'`), "unapplied", "its guard stands at"},
		{"an event below the offset that has no effect", sql(`update fenceline.guard set seq = 3 where key = 'a'`), "unapplied", "nothing of it is kept aside"},
		{"a stream below the offset that has no guard", sql(`delete from fenceline.guard where key = 'b'`), "unapplied", "it has no guard of this stream"},
		// X5: the consumer keeps what the restore has lost, and no record will ever say so.
		{"a stream that nothing followed in a new history", func(w *world) {
			w.exec(`select fenceline.history_bump()`)
		}, "unfollowed", "nothing was appended since a new history began"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int{0, 1} {
				w := story(t)
				c.tamper(w)
				_, all := w.verify(func(cfg *verify.Config) { cfg.BucketEvents = size })
				if got := kinds(all); got != c.want {
					t.Errorf("found %q, not %q:", got, c.want)
				}
				told := false
				for _, f := range all {
					told = told || strings.Contains(f.Detail, c.detail)
					if f.Kind.Remedy() == "" {
						t.Errorf("%s has no remedy", f.Kind)
					}
				}
				if !told {
					t.Errorf("no finding says %q", c.detail)
				}
				if t.Failed() {
					for _, f := range all {
						t.Log(f)
					}
				}
			}
		})
	}
}

// What one side no longer has is no disagreement.
func TestNothingIsSaidOfWhatRetentionHasTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		take func(*world)
	}{
		{"the log's start", func(w *world) {
			w.log.start = map[string]int64{topic: 2}
			for p, log := range w.log.topics[topic] {
				w.log.topics[topic][p] = slices.DeleteFunc(slices.Clone(log), func(l verify.LogRecord) bool { return l.Offset < 2 })
			}
		}},
		{"the outbox's oldest rows", func(w *world) {
			w.tamper(`update fenceline.outbox set created_at = created_at - interval '1 hour'`)
			// Their records say so, too.
			for p := range w.log.topics[topic] {
				w.log.topics[topic][p] = nil
			}
			w.publish()
			w.consume()
			w.tamper(`delete from fenceline.outbox where pos <= 4`)
		}},
		{"all rows of the outbox", func(w *world) { w.tamper(`delete from fenceline.outbox`) }},
		{"swept receipts", func(w *world) {
			w.tamper(`update fenceline.fence set floor_epoch = epoch, floor_token = max_issued_token`)
			w.tamper(`delete from fenceline.receipt`)
		}},
		{"the consumer's memory", func(w *world) {
			w.tamper(`delete from fenceline.guard where key = 'b'`)
			w.exec(`update fenceline.consumer_stream set forgotten = (select max(epoch) from fenceline.outbox where key = 'b')`)
		}},
		{"records that are kept aside", func(w *world) {
			w.exec(`update fenceline.guard set seq = 3, blocked = 'failing', blocked_since = now() where key = 'a'`)
			for _, seq := range []int{4, 5} {
				w.exec(`insert into fenceline.parked (consumer, stream, key, epoch, seq, kind, from_seq, topic, partition, kafka_offset, event_id, headers, timestamp_ms, reason)
					select $1, topic, key, epoch, seq, 'data', seq, topic, 0, 0, id, '{}', 0, 'failing' from fenceline.outbox where key = 'a' and seq = $2`, service, seq)
			}
		}},
		{"what a guard will never apply", func(w *world) {
			w.exec(`update fenceline.guard set seq = 3, missed = '{[4,6)}' where key = 'a'`)
		}},
		{"markers, which move no guard of a state stream", func(w *world) {
			w.exec(`update fenceline.guard set seq = 1 where key = 'd'`)
			w.exec(`update fenceline.consumer_stream set policy = 'state'`)
		}},
		{"a record in quarantine of which no position was read", func(w *world) {
			w.exec(`update fenceline.guard set seq = 4 where key = 'a'`)
			p, i := w.log.find(w, "a", 5)
			w.exec(`insert into fenceline.quarantine (consumer, topic, partition, kafka_offset, digest, reason, error, headers, timestamp_ms) values ($1, $2, $3, $4, '\x00', 'malformed', 'e', '{}', 0)`,
				service, topic, p, w.log.topics[topic][p][i].Offset)
		}},
		{"records that did not fit", func(w *world) {
			w.exec(`update fenceline.guard set seq = 3 where key = 'a'`)
			p, i := w.log.find(w, "a", 4)
			w.exec(`update fenceline.consumer_offset set overflow_offset = $1, overflow_end = next_offset where partition = $2`, w.log.topics[topic][p][i].Offset, p)
		}},
		{"a topic that was given up", func(w *world) {
			w.exec(`insert into fenceline.relay_topic (topic, partitions, retired_at, retired_by, why) values ($1, 3, now(), 'x', 'y')`, topic)
			w.tamper(`update fenceline.outbox set verdict = 'retired', verdict_at = now(), skip_from = case when kind <> 'end' then seq end, skip_to = case when kind <> 'end' then seq end`)
			delete(w.log.topics, topic)
			w.exec(`delete from fenceline.guard`)
		}},
		{"a range that was given up, of which the marker is there", func(w *world) {
			w.tamper(`update fenceline.outbox set verdict = 'skipped', verdict_at = now(), skip_from = 2, skip_to = 3 where key = 'a' and seq in (2, 3)`)
			p, i := w.log.find(w, "a", 3)
			r := parse(w, topic, w.log.topics[topic][p][i])
			_, j := w.log.find(w, "a", 2)
			first := slices.IndexFunc(w.log.topics[topic][p], func(l verify.LogRecord) bool { r := parse(w, topic, l); return r.Key == "a" && r.Seq == 3 })
			log := slices.Clone(w.log.topics[topic][p])
			marker := wire(outbox.Skip(&r, 2, time.Now()))
			marker.Offset = log[first].Offset
			log[first] = marker
			log = slices.Delete(log, i, i+1) // the copy
			w.log.topics[topic][p] = slices.Delete(log, j, j+1)
			w.consume()
		}},
		{"shards that have no relay yet", func(w *world) {
			for p := range w.log.topics[topic] {
				w.log.topics[topic][p] = nil
			}
			w.exec(`update fenceline.relay_checkpoint set shards = '{}'`)
			w.exec(`delete from fenceline.guard`)
			w.exec(`delete from fenceline.consumer_offset`)
		}},
		{"held streams", func(w *world) {
			p, _ := w.log.find(w, "a", 5)
			w.log.topics[topic][p] = slices.DeleteFunc(slices.Clone(w.log.topics[topic][p]), func(l verify.LogRecord) bool {
				r := parse(w, topic, l)
				return r.Key == "a" && r.Seq > 2
			})
			w.consume()
			w.exec(`insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail) select topic, key, pos, epoch, seq, 'r', 'd' from fenceline.outbox where key = 'a' and seq = 3`)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := story(t)
			c.take(w)
			_, all := w.verify()
			for _, f := range all {
				t.Error(f)
			}
		})
	}
}

func TestVerifyRefusesAConfigurationThatCannotWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for want, change := range map[string]func(*verify.Config){
		"no Config.Producer": func(c *verify.Config) { c.Producer = nil },
		"no Config.Log":      func(c *verify.Config) { c.Log = nil },
		"a consumer without": func(c *verify.Config) { c.Consumers = []verify.Consumer{{Pool: w.pool}} },
		"is there twice":     func(c *verify.Config) { c.Consumers = append(c.Consumers, c.Consumers...) },
		"has no pool":        func(c *verify.Config) { c.Consumers = []verify.Consumer{{Name: "x"}} },
		"BucketEvents is -1": func(c *verify.Config) { c.BucketEvents = -1 },
		"schema":             func(c *verify.Config) { c.Schema = "No Such" },
		"schema missing":     func(c *verify.Config) { c.Schema = "nowhere" },
	} {
		cfg := verify.Config{Producer: w.pool, Log: w.log, Dir: t.TempDir(), Consumers: []verify.Consumer{{Name: service, Pool: w.pool}}}
		change(&cfg)
		_, err := verify.Run(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q, want %q", err, want)
		}
	}
}
