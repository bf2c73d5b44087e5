package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/outbox"
)

// event is one in memory, as it will travel.
type event struct {
	key, value []byte
	headers    []outbox.WireHeader
}

// loadMessages reads what fillFenceline has put there: the ceilings send the
// very records that the relay sends, headers included.
func loadMessages(ctx context.Context, j job) ([]event, error) {
	conn, err := pgx.Connect(ctx, j.dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `select id, aggregatetype, type, payload, topic, key, epoch, token, seq, source, contenttype, coalesce(history, 0), created_at from fenceline.outbox order by pos`)
	if err != nil {
		return nil, err
	}
	var all []event
	var r outbox.Record
	var id [16]byte
	_, err = pgx.ForEachRow(rows, []any{&id, &r.AggregateType, &r.Type, &r.Payload, &r.Topic, &r.Key, &r.Epoch, &r.Token, &r.Seq, &r.Source, &r.ContentType, &r.History, &r.CreatedAt}, func() error {
		r.ID, r.Stream, r.Kind = id, r.Topic, outbox.KindData
		all = append(all, event{key: []byte(r.Key), value: append([]byte{}, r.Payload...), headers: outbox.AppendWireHeaders(nil, &r)})
		return nil
	})
	return all, err
}

// byPartition splits them as Java's default partitioner would.
func byPartition(all []event) [partitions][]event {
	var lanes [partitions][]event
	for _, m := range all {
		p := outbox.Partition(m.key, partitions)
		lanes[p] = append(lanes[p], m)
	}
	return lanes
}

// rawProduce is the ceiling of kafka-go: 500 records a request, a goroutine for
// each partition, acks from all.
func rawProduce(ctx context.Context, j job, ready func()) error {
	all, err := loadMessages(ctx, j)
	if err != nil {
		return err
	}
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(j.kafka), Transport: transport}
	if _, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{j.topic}}); err != nil {
		return err
	}
	lanes := byPartition(all)
	ready()
	return eachLane(func(p int) error {
		for lane := lanes[p]; len(lane) > 0; {
			n := min(500, len(lane))
			records := make([]kafka.Record, n)
			for i, m := range lane[:n] {
				records[i] = kafka.Record{Key: kafka.NewBytes(m.key), Value: kafka.NewBytes(m.value), Headers: headersOf(m), Time: time.Now()}
			}
			res, err := client.Produce(ctx, &kafka.ProduceRequest{Topic: j.topic, Partition: p, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...)})
			if err == nil {
				err = res.Error
			}
			if err != nil {
				return err
			}
			lane = lane[n:]
		}
		return nil
	})
}

func headersOf(m event) []kafka.Header {
	h := make([]kafka.Header, len(m.headers))
	for i, w := range m.headers {
		h[i] = kafka.Header{Key: w.Key, Value: w.Value}
	}
	return h
}

func eachLane(work func(p int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, partitions)
	for p := range partitions {
		wg.Go(func() { errs[p] = work(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// rawWriter is kafka-go's Writer at its best: batches that fill, a caller for
// each partition.
func rawWriter(ctx context.Context, j job, ready func()) error {
	all, err := loadMessages(ctx, j)
	if err != nil {
		return err
	}
	w := &kafka.Writer{
		Addr: kafka.TCP(j.kafka), Topic: j.topic, Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll,
		BatchSize: 500, BatchBytes: 1 << 20, BatchTimeout: time.Millisecond,
	}
	defer w.Close()
	lanes := byPartition(all)
	ready()
	return eachLane(func(p int) error {
		for lane := lanes[p]; len(lane) > 0; {
			n := min(500, len(lane))
			batch := make([]kafka.Message, n)
			for i, m := range lane[:n] {
				batch[i] = kafka.Message{Key: m.key, Value: m.value, Headers: headersOf(m)}
			}
			if err := w.WriteMessages(ctx, batch...); err != nil {
				return err
			}
			lane = lane[n:]
		}
		return nil
	})
}

// rawFranz is franz-go as it comes: idempotent, no linger, batches by size.
func rawFranz(ctx context.Context, j job, ready func()) error {
	all, err := loadMessages(ctx, j)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(j.kafka), kgo.DefaultProduceTopic(j.topic), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(10_000))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	ready()
	var mu sync.Mutex
	var failed error
	for _, m := range all {
		r := &kgo.Record{Key: m.key, Value: m.value}
		for _, h := range m.headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	return errors.Join(client.Flush(ctx), failed)
}
