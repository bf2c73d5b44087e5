package consumer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/fenceline/fenceline/outbox"
)

// park stores a record that waits; stored is false if it doesn't fit.
func (b *batch) park(e *entry, d *Delivery, dec Decision) (stored bool, err error) {
	if stored, err = b.room(e, d, dec.Row); !stored {
		return false, err
	}
	var (
		cause    *string
		attempts int
		raw      = d.raw()
		size     = sizeOf(raw)
	)
	if dec.Reason == Failing && d.Failed != nil {
		text := clean(d.Failed)
		cause, attempts = &text, max(d.Attempt, 1)
	}
	b.queue.Queue(b.g.sql.park, b.g.cfg.Consumer, d.Stream, d.Key, d.Epoch, d.Seq, string(d.kind()), d.First(),
		d.Topic, d.Partition, d.Offset, d.ID, flatHeaders(raw.Headers), raw.Key, raw.Value, raw.Time.UnixMilli(),
		string(dec.Reason), cause, attempts, size).Query(b.storing(e, size))
	e.top = nil
	return true, nil
}

// bury stores a dead letter; stored is false if it doesn't fit. A copy of one
// always does.
func (b *batch) bury(e *entry, d *Delivery) (stored bool, err error) {
	if b.dead[d.Position()] == notDead {
		full, err := b.full(e)
		if err != nil {
			return false, err
		}
		if full {
			b.refuse(e, d)
			return false, nil
		}
	}
	raw := d.raw()
	size := sizeOf(raw)
	b.queue.Queue(b.g.sql.bury, b.g.cfg.Consumer, d.Stream, d.Key, d.Epoch, d.Seq, string(d.kind()),
		d.Topic, d.Partition, d.Offset, d.ID, flatHeaders(raw.Headers), raw.Key, raw.Value, raw.Time.UnixMilli(), clean(d.Failed), size).Query(b.storing(e, size))
	if b.dead == nil {
		b.dead = make(map[Position]deadState)
	}
	b.dead[d.Position()] = deadLetter // for another copy in this batch
	return true, nil
}

// quarantine stores a record that can't be placed or is not believed. row is
// the guard it was compared with. Beyond the limit it keeps where the record
// lies and why it is refused, and not what it says: nothing of its own waits for
// it, and what floods a topic with such records must not fill the database.
func (b *batch) quarantine(row *Row, d *Delivery, dec Decision) error {
	var (
		stream, key, kind *string
		epoch, seq        *int64
		raw               = d.raw()
		sum, size         = digest(raw), sizeOf(raw)
		text              = b.explain(row, d, dec.Reason)
	)
	if dec.Reason != Malformed {
		k := string(d.kind())
		stream, key, kind, epoch, seq = &d.Stream, &d.Key, &k, &d.Epoch, &d.Seq
	}
	full, err := b.quarantineFull(size)
	if err != nil {
		return err
	}
	if full {
		text += "; what the record says was not kept, because the quarantine is full: it is in the log at its offset"
		raw, size = KafkaRecord{Time: raw.Time, Headers: []outbox.WireHeader{}}, 0
	}
	b.queue.Queue(b.g.sql.quarantine, b.g.cfg.Consumer, d.Topic, d.Partition, d.Offset, sum, string(dec.Reason),
		text, stream, key, epoch, seq, kind, flatHeaders(raw.Headers), raw.Key, raw.Value, raw.Time.UnixMilli(), size, full)
	return nil
}

// quarantineFull counts, once per batch, as far as the limit reaches.
func (b *batch) quarantineFull(size int64) (bool, error) {
	l := &b.g.cfg.Limits
	if l.Records >= Unlimited && l.Bytes >= Unlimited {
		return false, nil
	}
	if b.open < 0 {
		err := b.tx.QueryRow(b.ctx, b.g.sql.open, b.g.cfg.Consumer, l.Records).Scan(&b.open, &b.openBytes)
		if err != nil {
			return false, fmt.Errorf("consumer: counting what is in quarantine: %w", err)
		}
	}
	if b.open >= l.Records || b.openBytes >= l.Bytes {
		return true, nil
	}
	b.open, b.openBytes = b.open+1, b.openBytes+size
	return false, nil
}

// explain says why a record is in quarantine, with the evidence.
func (b *batch) explain(row *Row, d *Delivery, why Reason) string {
	switch why {
	case Malformed:
		return clean(d.Malformed)
	case Absurd:
		return fmt.Sprintf("epoch %d is more than %v ahead of the database's clock (%d)", d.Epoch, b.g.cfg.MaxAhead, b.now.UnixMicro())
	case BeforeMemory:
		return fmt.Sprintf("guards up to epoch %d were forgotten: whether this event was applied can't be known", b.forgotten[d.Stream])
	case BeforeOrigin:
		return fmt.Sprintf("epoch %d is older than %d, which was taken for the first life of the key", d.Epoch, row.StartEpoch)
	}
	return fmt.Sprintf("token %d contradicts the guard, which stands at epoch %d, token %d, seq %d", d.Token, row.Epoch, row.Token, row.Seq)
}

// clean is an error's text as PostgreSQL can store it, and not longer than a
// person will read.
func clean(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if len(text) > 4096 {
		text = text[:4096]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

// flatHeaders are names and values in turn.
func flatHeaders(hs []outbox.WireHeader) [][]byte {
	flat := make([][]byte, 0, 2*len(hs))
	for _, h := range hs {
		flat = append(flat, []byte(h.Key), h.Value)
	}
	return flat
}

func wireHeaders(flat [][]byte) []outbox.WireHeader {
	hs := make([]outbox.WireHeader, 0, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		hs = append(hs, outbox.WireHeader{Key: string(flat[i]), Value: flat[i+1]})
	}
	return hs
}

// digest tells records apart that lie, or have lain, at one offset. Each part
// is preceded by its length, and null is not empty.
func digest(r KafkaRecord) []byte {
	h := sha256.New()
	part := func(p []byte) {
		n := int64(len(p))
		if p == nil {
			n = -1
		}
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(n))
		h.Write(length[:])
		h.Write(p)
	}
	part(r.Key)
	part(r.Value)
	for _, header := range r.Headers {
		part([]byte(header.Key))
		part(header.Value)
	}
	return h.Sum(nil)
}
