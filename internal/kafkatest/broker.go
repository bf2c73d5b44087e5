package kafkatest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/internal/devstack/testmain"
)

const (
	// EnvKind names the environment variable that chooses the broker: kfake or apache.
	EnvKind = "FENCELINE_TEST_KAFKA"
	// EnvAddr names the environment variable with the address of a running Apache Kafka.
	EnvAddr = "FENCELINE_TEST_KAFKA_ADDR"
)

// startTimeout bounds everything that a broker is waited for: a first fetch of the jars included.
const startTimeout = 5 * time.Minute

// Main runs the tests of a package and then ends the servers that they shared, PostgreSQL included. It returns the
// exit code.
func Main(m testmain.Runner) int { return testmain.Main(m) }

// Real tells whether this run is against Apache Kafka.
func Real(t testing.TB) bool {
	t.Helper()
	switch kind := os.Getenv(EnvKind); kind {
	case "", "kfake":
		return false
	case "apache":
		return true
	default:
		t.Fatalf("kafkatest: %s=%s: it must be kfake or apache", EnvKind, kind)
		return false
	}
}

// Broker returns the address of the broker that all tests of this test binary share.
func Broker(t testing.TB) string {
	t.Helper()
	start := sharedKfake
	if Real(t) {
		start = sharedApache
	}
	addr, err := start()
	if err != nil {
		t.Fatal(err) // never a skip: a run against real Kafka without Kafka must fail
	}
	return addr
}

var sharedKfake = sync.OnceValues(func() (string, error) {
	broker, err := devstack.StartBroker()
	if err != nil {
		return "", err
	}
	testmain.OnExit(func() error { broker.Stop(); return nil })
	return broker.Addr(), nil
})

var sharedApache = sync.OnceValues(func() (string, error) {
	if addr := os.Getenv(EnvAddr); addr != "" {
		return addr, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	broker, err := apachekafka.Start(ctx, apachekafka.Config{})
	if err != nil {
		return "", err
	}
	testmain.OnExit(func() error { return broker.Stop(context.Background()) })
	return broker.Addr(), nil
})

// Kfake starts an in-process cluster for this test alone, of one node unless opts say otherwise, whose faults the test
// chooses. In a run against Apache Kafka the test is skipped, since it says nothing about that.
func Kfake(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	if Real(t) {
		t.Skipf("chooses the broker's answers, which Apache Kafka doesn't offer: runs with %s=kfake only", EnvKind)
	}
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(fmt.Errorf("kafkatest: start kfake: %w", err))
	}
	t.Cleanup(cluster.Close)
	return cluster
}

// Apache starts an Apache Kafka for this test alone, to be killed, restarted, or run with properties of its own. In a
// run against kfake the test is skipped.
func Apache(t testing.TB, cfg apachekafka.Config) *apachekafka.Broker {
	t.Helper()
	if !Real(t) {
		t.Skipf("needs Apache Kafka: runs with %s=apache only", EnvKind)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	broker, err := apachekafka.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return broker
}

// ApacheCluster starts an Apache Kafka of three brokers for this test alone, whose topics have three replicas and need
// two for an acknowledgement. In a run against kfake the test is skipped.
func ApacheCluster(t testing.TB, cfg apachekafka.Config) *apachekafka.Cluster {
	t.Helper()
	if !Real(t) {
		t.Skipf("needs Apache Kafka: runs with %s=apache only", EnvKind)
	}
	if cfg.MaxHeapMB == 0 {
		cfg.MaxHeapMB = 256
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cluster, err := apachekafka.StartCluster(ctx, 3, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return cluster
}
