package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/consumer"
)

// Why a topic can't be read, for errors.Is.
var (
	// ErrTopicMissing: the topic does not exist, or this login may not see it.
	ErrTopicMissing = errors.New("kafkasource: topic missing")
	// ErrTopicCompacted: compaction keeps the record with the highest offset of
	// a key, not the one with the highest position, and takes the others away.
	ErrTopicCompacted = errors.New("kafkasource: topic is compacted")
	// ErrPartitionsChanged: with another number of partitions a key's events
	// lie in two of them, and no order holds between the two. It is the error
	// that [consumer.Run] has for a change that it finds at its start.
	ErrPartitionsChanged = consumer.ErrPartitionsChanged
)

// TopicError says which topic can't be read, why, and what to do.
type TopicError struct {
	Topic  string
	Reason string
	// Err is one of the sentinels above, or the broker's error.
	Err error
}

// Error implements error.
func (e *TopicError) Error() string {
	return fmt.Sprintf("kafkasource: topic %q %s", e.Topic, e.Reason)
}

// Unwrap gives Err.
func (e *TopicError) Unwrap() error { return e.Err }

// partitions asks the cluster for the number of partitions of each topic. The
// transport answers from its cache (at most Config.WatchInterval old), and
// never asks in a way that would create a topic.
func (s *Source) partitions(ctx context.Context) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	res, err := s.client.Metadata(ctx, &kafka.MetadataRequest{Topics: s.cfg.Topics})
	if err != nil {
		return nil, fmt.Errorf("kafkasource: no answer from the brokers %s: %w; check the addresses, and TLS and SASL settings", strings.Join(s.cfg.Brokers, ", "), err)
	}
	counts := make(map[string]int, len(s.cfg.Topics))
	for _, t := range res.Topics {
		switch {
		case t.Error == nil && len(t.Partitions) > 0:
			counts[t.Name] = len(t.Partitions)
		case errors.Is(t.Error, kafka.TopicAuthorizationFailed):
			return nil, &TopicError{t.Name, "may not be described by this login: grant it DESCRIBE and READ", t.Error}
		case errors.Is(t.Error, kafka.InvalidTopic):
			return nil, &TopicError{t.Name, "is not a valid topic name", t.Error}
		}
	}
	for _, t := range s.cfg.Topics {
		if counts[t] == 0 {
			return nil, &TopicError{t, "does not exist, or this login may not see it: create it (the number of partitions should not change later), or grant DESCRIBE", ErrTopicMissing}
		}
	}
	return counts, nil
}

// checkPolicy refuses topics whose records are taken away in the wrong order.
func (s *Source) checkPolicy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	req := &kafka.DescribeConfigsRequest{}
	for _, t := range s.cfg.Topics {
		req.Resources = append(req.Resources, kafka.DescribeConfigRequestResource{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: t, ConfigNames: []string{"cleanup.policy"},
		})
	}
	res, err := s.client.DescribeConfigs(ctx, req)
	if err != nil {
		return fmt.Errorf("kafkasource: the topics' settings can't be read: %w", err)
	}
	for _, r := range res.Resources {
		if errors.Is(r.Error, kafka.TopicAuthorizationFailed) || errors.Is(r.Error, kafka.ClusterAuthorizationFailed) {
			// A setting that can't be seen is no proof that it is wrong.
			s.log.Warn("the topic's settings can't be checked: this login lacks DESCRIBE_CONFIGS", "topic", r.ResourceName)
			continue
		}
		if r.Error != nil {
			return &TopicError{r.ResourceName, fmt.Sprintf("can't be described: %v", r.Error), r.Error}
		}
		for _, e := range r.ConfigEntries {
			if e.ConfigName == "cleanup.policy" && slices.Contains(strings.Split(e.ConfigValue, ","), "compact") {
				return &TopicError{r.ResourceName, fmt.Sprintf("has cleanup.policy=%s, which deletes events that are not superseded: set cleanup.policy=delete", e.ConfigValue), ErrTopicCompacted}
			}
		}
	}
	return nil
}
