package kafkapub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

func TestEveryCodeOfTheBrokerHasItsVerdict(t *testing.T) {
	t.Parallel()
	// Written out code by code, apart from the table under test.
	want := map[verdict][]int{
		moved:         {5, 6, 8, 9, 13, 56, 72, 74, 75, 100, 103, 129},
		absent:        {3},
		anew:          {45, 46, 49, 59},
		refused:       {10, 18, 32, 87},
		closed:        {17, 29, 43, 44},
		fenced:        {47, 48, 90},
		notIdempotent: {31},
		notCompressed: {76},
	}
	known := 0
	for code := -1; code <= 140; code++ {
		if code == 0 {
			continue
		}
		e := kafka.Error(code)
		if e.Title() != "" {
			known++
		}
		expect := again
		for v, codes := range want {
			if slices.Contains(codes, code) {
				expect = v
			}
		}
		for _, err := range []error{e, fmt.Errorf("%w: the broker's words", e), fmt.Errorf("call: %w", fmt.Errorf("%w: words", e))} {
			if got := classify(err); got != expect {
				t.Errorf("%v: verdict %d, want %d", err, got, expect)
			}
		}
	}
	for code := 141; code < 1000; code++ {
		if e := kafka.Error(code); e.Title() != "" {
			t.Errorf("kafka-go knows a code beyond this test: %v", e)
		}
	}
	if known < 100 {
		t.Errorf("only %d codes have a title: the loop doesn't cover what kafka-go knows", known)
	}
}

func TestErrorsWithoutACodeAreOutages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want verdict
	}{
		{protocol.NewErrNoTopic("t"), absent},
		{fmt.Errorf("kafka: %w", protocol.NewErrNoPartition("t", 3)), absent},
		{protocol.NewErrNoLeader("t", 3), moved},
		{context.Canceled, again},
		{context.DeadlineExceeded, moved},
		{io.EOF, moved},
		{io.ErrUnexpectedEOF, moved},
		{syscall.ECONNREFUSED, moved},
		{syscall.EPIPE, moved},
		{errors.New("anything"), moved},
		{protocol.Errorf("correlation id mismatch"), moved},
	} {
		if got := classify(c.err); got != c.want {
			t.Errorf("%v: verdict %d, want %d", c.err, got, c.want)
		}
	}
}

func TestConfigurationErrorsComeAllAtOnceAndNameTheRemedy(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Brokers: []string{"localhost", ":9092", "a,b:1", "host:0", "host:http", "kafka://h:1"}, Timeout: 10, MetadataTTL: -1, MaxBatchBytes: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`"localhost": missing port in address: write host:port`, `":9092": the host is missing`, `"a,b:1": ',' does not belong`,
		`"host:0": port "0"`, `"host:http": port "http"`, `"kafka://h:1"`, "timeout 10ns", "metadata TTL", "max batch bytes",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %s:\n%v", want, err)
		}
	}
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "no brokers") {
		t.Errorf("no brokers: %v", err)
	}
	p, err := New(Config{Brokers: []string{"127.0.0.1:9092", "[::1]:9093", "kafka-0.kafka.svc:9092"}})
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
}
