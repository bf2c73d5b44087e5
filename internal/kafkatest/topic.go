package kafkatest

import (
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// waitTimeout bounds what a test waits for a broker to do.
const waitTimeout = 30 * time.Second

// Name makes a name that nobody else uses, for a topic, a group or a transactional id. It begins with the test's name,
// so that a broker's log can be read.
func Name(t testing.TB) string {
	name := unfit.ReplaceAllString(t.Name(), "-")
	if len(name) > 80 {
		name = name[:80]
	}
	return name + "-" + strings.ToLower(rand.Text()[:10])
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9]+`)

// Topic creates a topic with settings such as "cleanup.policy=compact" and returns its name, which is new. Each of its
// partitions has a leader when Topic returns. It is deleted after the test.
func Topic(t testing.TB, addr string, partitions int, settings ...string) string {
	t.Helper()
	name := Name(t)
	CreateTopic(t, addr, name, partitions, settings...)
	return name
}

// CreateTopic is Topic with a name that the test chooses.
func CreateTopic(t testing.TB, addr, name string, partitions int, settings ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	configs := map[string]*string{}
	for _, setting := range settings {
		key, value, ok := strings.Cut(setting, "=")
		if !ok {
			t.Fatalf("kafkatest: topic setting %q: it must be name=value", setting)
		}
		configs[key] = &value
	}
	admin := Admin(t, addr)
	if _, err := admin.CreateTopic(ctx, int32(partitions), -1, configs, name); err != nil {
		t.Fatalf("kafkatest: create topic %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		// A broker that the test has ended, or a topic that it has deleted, needs no cleaning.
		if _, err := admin.DeleteTopic(ctx, name); errors.Is(err, kerr.UnknownTopicOrPartition) {
			return
		} else if ke := (*kerr.Error)(nil); errors.As(err, &ke) {
			t.Errorf("kafkatest: delete topic %s: %v", name, err)
		}
	})
	// Creating is answered before the leaders are elected; a produce in between is refused.
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		ends, err := admin.ListEndOffsets(ctx, name)
		if err == nil {
			err = ends.Error()
		}
		if err == nil && len(ends[name]) == partitions {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("kafkatest: topic %s has no leaders: %v (%d of %d partitions)", name, err, len(ends[name]), partitions)
		case <-ticker.C:
		}
	}
}

// Admin is an administrative client, closed after the test: for what production code has no use for, such as deleting
// records or altering a topic.
func Admin(t testing.TB, addr string) *kadm.Client {
	t.Helper()
	client := client(t, addr)
	return kadm.NewClient(client)
}

func client(t testing.TB, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(addr),
		kgo.MetadataMinAge(10 * time.Millisecond), // new topics and leaders are seen at once
		kgo.RetryTimeout(5 * time.Second),         // a broker that the test has ended isn't waited for
	}, opts...)...)
	if err != nil {
		t.Fatalf("kafkatest: client for %s: %v", addr, err)
	}
	t.Cleanup(c.Close)
	return c
}
