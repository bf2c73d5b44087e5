package consumer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// readFacts reads what else decides.
func (b *batch) readFacts(rows pgx.Rows) error {
	b.forgotten, b.known = make(map[string]int64), make(map[string]bool)
	b.truncated, b.overflow = make(map[Partition]bool), make(map[Partition]bool)
	var (
		isolation, truncated, overflowing string
		s                                 streamFacts
	)
	for rows.Next() {
		if err := rows.Scan(&isolation, &b.now, &truncated, &overflowing, &s.stream, &s.policy, &s.start, &s.forgotten); err != nil {
			return err
		}
		if isolation != "read committed" {
			return fmt.Errorf("%w but %s", ErrIsolation, strings.ToUpper(isolation))
		}
		if s.stream == "" {
			continue // none of them is known
		}
		if err := b.addStream(s); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), addPartitions(truncated, b.truncated), addPartitions(overflowing, b.overflow))
}

// readStreams reads those that were new.
func (b *batch) readStreams(rows pgx.Rows) error {
	for rows.Next() {
		var s streamFacts
		if err := rows.Scan(&s.stream, &s.policy, &s.start, &s.forgotten); err != nil {
			return err
		}
		if err := b.addStream(s); err != nil {
			return err
		}
	}
	return rows.Err()
}

// streamFacts is what is stored of a stream.
type streamFacts struct {
	stream, policy, start string // plain ones: the driver has to find out about others each time
	forgotten             int64
}

// addStream also compares what the guards were written under with what is
// configured now.
func (b *batch) addStream(s streamFacts) error {
	b.forgotten[s.stream], b.known[s.stream] = s.forgotten, true
	have := StreamConfig{Policy: Policy(s.policy), Start: Start(s.start)}
	if b.operator {
		b.settings[s.stream] = have
		return nil
	}
	want := b.g.stream(s.stream)
	// Where a stream starts is nothing to a state stream.
	if have.Policy != want.Policy || have.Policy == Strict && have.Start != want.Start {
		return &StreamChangedError{
			Consumer: b.g.cfg.Consumer, Stream: s.stream,
			HavePolicy: have.Policy, HaveStart: have.Start, WantPolicy: want.Policy, WantStart: want.Start,
		}
	}
	return nil
}

// checkStreams writes down the settings of streams that are new. Whoever loses
// the race for the first one reads the winner's.
func (b *batch) checkStreams() error {
	var missing []string
	for _, k := range b.order {
		if !b.known[k.Stream] && !b.operator && !slices.Contains(missing, k.Stream) {
			missing = append(missing, k.Stream)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var q pgx.Batch
	for _, stream := range missing {
		c := b.g.stream(stream)
		q.Queue(b.g.sql.addStream, b.g.cfg.Consumer, stream, string(c.Policy), string(c.Start))
	}
	q.Queue(b.g.sql.streams, b.g.cfg.Consumer, missing).Query(b.readStreams)
	if err := b.tx.SendBatch(b.ctx, &q).Close(); err != nil {
		if errors.Is(err, ErrStreamChanged) {
			return err
		}
		return fmt.Errorf("consumer: registering streams: %w", err)
	}
	return nil
}

// addPartitions reads a list of partitions as [Partition.String] writes them.
func addPartitions(list string, into map[Partition]bool) error {
	if list == "[]" {
		return nil
	}
	var names []string
	if err := json.Unmarshal([]byte(list), &names); err != nil {
		return err
	}
	for _, name := range names {
		at := strings.LastIndexByte(name, '/')
		id, err := strconv.Atoi(name[at+1:])
		if at < 0 || err != nil {
			return fmt.Errorf("%q is no partition", name)
		}
		into[Partition{name[:at], id}] = true
	}
	return nil
}
