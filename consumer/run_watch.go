package consumer

import (
	"errors"
	"fmt"
	"time"
)

// unreadable raises the alarm for a batch that reading again won't change.
func (p *partition) unreadable(err error) {
	var b *BatchError
	if errors.As(err, &b) && b.Offset != p.unread {
		p.unread = b.Offset // once is enough, the tries go on
		p.alarm(Alarm{Partition: p.assigned.Partition, Kind: Unreadable, From: b.Offset, To: b.Offset + 1, Text: b.Reason})
	}
}

func (p *partition) alarm(a Alarm) {
	p.log.Error("alarm: "+string(a.Kind), "from", a.From, "to", a.To, "text", a.Text)
	if p.cfg.Observer != nil {
		p.cfg.Observer.Alarm(a)
	}
}

func (p *partition) observeFailure(f Failure) {
	if p.cfg.Observer != nil {
		p.cfg.Observer.Failing(f)
	}
}

func (p *partition) changed(s PartitionState, err error) {
	if o, ok := p.cfg.Observer.(PartitionObserver); ok && p.assigned.Topic != "" {
		o.PartitionChanged(PartitionChange{Partition: p.assigned.Partition, State: s, Reason: err})
	}
}

// waits notes that the partition doesn't get on, and why. That is told at once;
// an alarm is raised when it has lasted.
func (p *partition) waits(err error) {
	if p.since.IsZero() {
		p.since = time.Now()
		p.changed(Waiting, err)
	}
	if lasts := time.Since(p.since); !p.stalls && lasts >= p.cfg.StallAlarm {
		p.stalls = true
		p.alarm(Alarm{Partition: p.assigned.Partition, Kind: Stalled, From: p.offset, To: p.offset, Stream: p.stream,
			Text: fmt.Sprintf("nothing was applied for %v, the tries go on: %v", lasts.Round(time.Second), err)})
	}
}

// recovered notes that it gets on again.
func (p *partition) recovered() {
	if !p.since.IsZero() {
		p.since, p.stalls = time.Time{}, false
		p.changed(Reading, nil)
	}
}
