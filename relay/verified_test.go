package relay_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/verify"
)

// verified compares the outbox with all that is in its topics, by the same
// comparison as an operator's "relay verify": a second opinion, which knows
// receipts, fences and payloads besides the order. Nothing may be left to publish.
func verified(t *testing.T, addr string, pool *pgxpool.Pool, events int) {
	t.Helper()
	report, err := verify.Run(t.Context(), verify.Config{
		Producer: pool, Log: &topics{t: t, addr: addr}, Logger: slog.New(slog.DiscardHandler),
		Found: func(f verify.Finding) { t.Errorf("verify: %s", f) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if report.Events != int64(events) || report.Waiting+report.Held+report.Uncovered != 0 {
		t.Errorf("verify: %d events were compared, %d are not published, %d are held, %d are beyond the retention; want all of %d compared", report.Events, report.Waiting, report.Held, report.Uncovered, events)
	}
}

// topics are read by another client than the one that writes them.
type topics struct {
	t       *testing.T
	addr    string
	records map[string]map[int32][]*kgo.Record
}

func (l *topics) of(topic string) map[int32][]*kgo.Record {
	if l.records[topic] == nil {
		l.records = map[string]map[int32][]*kgo.Record{topic: {}}
		for _, r := range kafkatest.Records(l.t, l.addr, topic) {
			l.records[topic][r.Partition] = append(l.records[topic][r.Partition], r)
		}
	}
	return l.records[topic]
}

// Spans implements verify.Log.
func (l *topics) Spans(ctx context.Context, topic string) ([]verify.Span, error) {
	listed, err := kafkatest.Admin(l.t, l.addr).ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	spans := make([]verify.Span, len(listed[topic]))
	for p, end := range listed[topic] {
		spans[p].End = end.Offset
	}
	return spans, err
}

// Read implements verify.Log.
func (l *topics) Read(_ context.Context, topic string, partition int, from, to int64, f func(verify.LogRecord) error) error {
	for _, r := range l.of(topic)[int32(partition)] {
		if r.Offset < from || r.Offset >= to {
			continue
		}
		var headers []outbox.WireHeader
		for _, h := range r.Headers {
			headers = append(headers, outbox.WireHeader{Key: h.Key, Value: h.Value})
		}
		if err := f(verify.LogRecord{Offset: r.Offset, TimestampMS: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value, Headers: headers}); err != nil {
			return err
		}
	}
	return nil
}
