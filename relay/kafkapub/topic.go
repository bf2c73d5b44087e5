package kafkapub

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/internal/kafkasec"
	"github.com/fenceline/fenceline/relay"
)

const (
	cleanupPolicy   = "cleanup.policy"
	maxMessageBytes = "max.message.bytes"
)

// Describe implements [relay.Publisher]. It asks on connections of its own, so
// that the answer is the broker's and not a memory. It needs the right to
// DESCRIBE the topic and its configuration. It returns within Config.Timeout.
func (p *Publisher) Describe(ctx context.Context, topic string) (relay.Topic, error) {
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return relay.Topic{}, err
	}
	defer leave()
	if topic == "" {
		return relay.Topic{}, &relay.TopicError{Topic: topic, Reason: "the name is empty: name a topic"}
	}
	r := newRoute(p.life, &p.config, topic, p.dialer)
	defer r.close()
	t, err := r.describe(ctx, topic)
	if err != nil {
		var te *relay.TopicError
		if !errors.As(err, &te) {
			err = cause(ctx, err)
			why, _ := kafkasec.Explain(err, nil)
			err = &relay.NoAnswerError{Topic: topic, Reason: why, Err: err}
		}
		return relay.Topic{}, err
	}
	return t, nil
}

func (r *route) describe(ctx context.Context, topic string) (relay.Topic, error) {
	partitions, err := r.partitions(ctx, topic)
	if err != nil {
		return relay.Topic{}, err
	}
	t := relay.Topic{Name: topic, Partitions: len(partitions)}
	resp, err := r.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic,
			ResourceName: topic,
			ConfigNames:  []string{cleanupPolicy, maxMessageBytes},
		}},
	})
	if err != nil {
		return t, err
	}
	if len(resp.Resources) != 1 {
		return t, fmt.Errorf("the broker described %d topics, asked for one", len(resp.Resources))
	}
	answer := resp.Resources[0]
	switch {
	case errors.Is(answer.Error, kafka.TopicAuthorizationFailed):
		return t, &relay.TopicError{Topic: topic, Err: answer.Error,
			Reason: "its configuration may not be read, so it can't be shown to keep every event: grant DescribeConfigs on the topic"}
	case answer.Error != nil:
		// Unknown included: a moment ago its partitions were listed, so it is
		// being created or deleted. The next call knows more.
		return t, answer.Error
	}
	// The broker answers with what is in force, its own defaults included. One
	// that leaves out what the relay's promises rest on is not trusted to have
	// Kafka's defaults.
	for _, e := range answer.ConfigEntries {
		switch e.ConfigName {
		case cleanupPolicy:
			t.CleanupPolicy = e.ConfigValue
		case maxMessageBytes:
			t.MaxMessageBytes, err = strconv.Atoi(e.ConfigValue)
			if err != nil {
				return t, fmt.Errorf("%s is %q, not a number", maxMessageBytes, e.ConfigValue)
			}
		}
	}
	if t.CleanupPolicy == "" || t.MaxMessageBytes == 0 {
		return t, &relay.TopicError{Topic: topic,
			Reason: fmt.Sprintf("the broker does not tell its %s and %s: set both on the topic", cleanupPolicy, maxMessageBytes)}
	}
	return t, nil
}

// partitions gives what the route knows of the topic's partitions; on a route
// that has just been made or made to forget, that is what the broker says now.
// The error is a *relay.TopicError, or there was no answer.
func (r *route) partitions(ctx context.Context, topic string) ([]kafka.Partition, error) {
	m, err := r.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	if len(m.Topics) != 1 {
		return nil, fmt.Errorf("the broker listed %d topics, asked for one", len(m.Topics))
	}
	t := m.Topics[0]
	switch {
	case t.Error == nil && len(t.Partitions) > 0:
		return t.Partitions, nil
	case t.Error == nil:
		return nil, errors.New("the topic has no partitions yet")
	case errors.Is(t.Error, kafka.UnknownTopicOrPartition):
		return nil, &relay.TopicError{Topic: topic, Reason: unknownReason, Err: t.Error}
	case classify(t.Error) == closed:
		return nil, &relay.TopicError{Topic: topic, Reason: closedReason(t.Error), Err: t.Error}
	}
	return nil, t.Error
}

// confirm is asked when a produce request found no such topic or partition. It
// gives a *relay.TopicError if that is what the broker says, asked now, and nil
// if the topic is there or nobody could be asked: then the batch goes out again.
//
// It can't be left to the answer itself. kafka-go routes by its cached layout
// and reports "topic not found" without asking anyone when the layout is older
// than the topic, or empty because no broker was ever reached; and a broker
// that has just begun to lead a partition can answer so as well.
func (r *route) confirm(ctx context.Context, topic string, partition, seen int) error {
	r.forget(seen)
	partitions, err := r.partitions(ctx, topic)
	if err != nil {
		var te *relay.TopicError
		if errors.As(err, &te) {
			return te
		}
		return nil
	}
	for _, p := range partitions {
		if p.ID == partition {
			return nil
		}
	}
	return &relay.TopicError{Topic: topic, Err: kafka.UnknownTopicOrPartition,
		Reason: fmt.Sprintf("it has no partition %d, as the relay knew it, and %d in all: it was created anew with fewer", partition, len(partitions))}
}

const unknownReason = "the broker does not know it: create it, or grant this client the right to see it (Describe); the relay creates no topics"

func closedReason(err error) string {
	switch {
	case errors.Is(err, kafka.InvalidTopic):
		return "the broker does not allow this name, or it is a topic of Kafka's own: events can't be published to it"
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return "this client may not write to it: grant Write and Describe on the topic"
	case errors.Is(err, kafka.ClusterAuthorizationFailed):
		return "this client may not write to the cluster: grant Write on the topic, and IdempotentWrite on the cluster before Kafka 2.8"
	case errors.Is(err, kafka.UnsupportedForMessageFormat):
		return "its message format is too old for headers: set message.format.version to 2.0 or later, or recreate it"
	}
	return "the broker refuses it: " + err.Error()
}
