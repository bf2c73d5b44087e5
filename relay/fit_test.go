package relay_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
)

func TestCheckTopicSaysOfEachUnfitTopicWhatToChange(t *testing.T) {
	good := relay.Topic{Name: "quakes", Partitions: 3, CleanupPolicy: "delete", MaxMessageBytes: 1 << 20}
	if err := relay.CheckTopic(good, outbox.MaxRecordBytes); err != nil { // a nil *TopicError in an error wouldn't be nil
		t.Errorf("a good topic is refused: %v", err)
	}
	for want, change := range map[string]func(*relay.Topic){
		"create it with at least one":                 func(d *relay.Topic) { d.Partitions = 0 },
		`"compact": compaction`:                       func(d *relay.Topic) { d.CleanupPolicy = "compact" },
		`"compact,delete": compaction`:                func(d *relay.Topic) { d.CleanupPolicy = "compact,delete" },
		"set max.message.bytes to at least 921728":    func(d *relay.Topic) { d.MaxMessageBytes = outbox.MaxRecordBytes },
		"producers may append records of 921600 byte": func(d *relay.Topic) { d.MaxMessageBytes = 1000 },
	} {
		d := good
		change(&d)
		err := relay.CheckTopic(d, outbox.MaxRecordBytes)
		var refusal *relay.TopicError
		if !errors.As(err, &refusal) || refusal.Topic != "quakes" || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want one with %q", d, err, want)
		}
	}
}
