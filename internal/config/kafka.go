package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Kafka is the settings of a command's brokers.
type Kafka struct {
	Brokers []string
}

// Register adds them to a set.
func (k *Kafka) Register(s *Set) {
	s.List(&k.Brokers, "kafka", "KAFKA_BROKERS", "", "Kafka brokers to begin with, host:port, separated by commas", Required(), Check(CheckBrokers))
}

// CheckBrokers is the rule for a list of brokers.
func CheckBrokers(v string) error {
	for b := range strings.SplitSeq(v, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(b))
		if err != nil || host == "" || port == "" {
			return errors.New("want host:port, or several separated by commas")
		}
	}
	return nil
}

// Reach tries whether one of the brokers can be reached, so that a wrong
// address is told at once instead of looking like an outage.
func (k *Kafka) Reach(ctx context.Context) error {
	var causes []string
	dialer := net.Dialer{Timeout: 5 * time.Second}
	for _, b := range k.Brokers {
		c, err := dialer.DialContext(ctx, "tcp", b)
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		causes = append(causes, err.Error())
	}
	return fmt.Errorf("no Kafka broker can be reached at %s: check -kafka, and that a broker is up (%s)", strings.Join(k.Brokers, ","), strings.Join(causes, "; "))
}
