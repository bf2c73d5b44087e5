package kafkapub

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"github.com/fenceline/fenceline/relay"
)

// lane is what the publisher knows of one partition. All but busy is guarded
// by busy.
type lane struct {
	// busy is held for the length of a Produce. It is only ever tried: of two
	// calls at once, none can say which batch comes first.
	busy      sync.Mutex
	topic     string
	partition int
	joiner    *joiner
	// alone: the last attempt failed, so the next goes by itself. slow: its answer
	// took long, so the next doesn't go with those of others that come with it.
	alone, slow bool

	// producer is the identity in use; nil: take a new one before sending.
	producer *producer
	// begun: the lane has had an identity, so the shared one, under which its
	// numbers are in use, is not for it any more.
	begun bool
	// sequence is the number of the next record that was never sent under
	// producer.
	sequence int32
	// open is the batch that holds sequence and what follows: it was sent, and
	// nobody knows whether the broker has counted it.
	open *frozen
	// notBefore: the broker asked to be left alone until then.
	notBefore time.Time
}

func (l *lane) String() string { return fmt.Sprintf("%s/%d", l.topic, l.partition) }

// prepare gives the bytes of b, ready to be sent.
func (l *lane) prepare(ctx context.Context, b *relay.Batch, ids *producers, codec compress.Codec, maxBytes int) (*frozen, error) {
	f, _ := b.Frozen.(*frozen)
	if f == nil {
		f = freeze(b.Records, codec)
		if size := len(f.buf) - prefixBytes; size > maxBytes {
			f.release()
			return nil, &relay.RefusedError{
				Indexes: theOne(b.Records),
				Reason:  fmt.Sprintf("%s: a batch of %d records takes %d bytes, more than the %d that one request may hold", l, len(b.Records), size, maxBytes),
			}
		}
		b.Frozen = f
	}
	if l.open == f {
		return f, nil // the same bytes once more
	}
	// Nothing may be sent under numbers that other records may have used up:
	// the broker would take the one for the other, and acknowledge what it
	// never appended. Nor may the numbers run out in the middle of a batch.
	if l.open != nil || l.sequence > math.MaxInt32-int32(f.records) {
		l.restart()
	}
	if l.producer == nil {
		take := ids.next
		if !l.begun {
			take = ids.first
		}
		p, err := take(ctx, l.joiner.route.client)
		if err != nil {
			return nil, err
		}
		l.producer, l.begun, l.sequence = p, true, 0
	}
	sequence := l.sequence
	if l.producer == unnumbered {
		sequence = -1
	}
	f = f.seal(l.producer, sequence)
	b.Frozen, l.open = f, f
	return f, nil
}

// settled: the open batch is in the log.
func (l *lane) settled() {
	l.sequence += int32(l.open.records)
	l.open = nil
}

// restart gives up the identity and whatever was sent under it. Why that keeps
// the order is in the package's comment.
func (l *lane) restart() { l.producer, l.open = nil, nil }

// pause waits until the broker wants to hear from us again.
func (l *lane) pause(ctx context.Context) error {
	wait := time.Until(l.notBefore)
	if wait <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
