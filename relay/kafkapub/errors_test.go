package kafkapub

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/fenceline/fenceline/relay"
)

// lastCode is beyond what today's protocol has: kerr knows them by name.
const lastCode = 140

func TestEachAnswerThatTheProtocolHasGetsTheReactionOfItsClass(t *testing.T) {
	t.Parallel()
	c := fake(t)
	seen := listen(c)
	var want []int64
	for code := -1; code <= lastCode; code++ {
		if code == 0 {
			continue
		}
		p := open(t, c.ListenAddrs())
		seq := int64(1000 + code)
		before := events(seq)
		insist(t, p, before) // the answer comes to a producer that is known
		from := seen.all()[len(seen.all())-1]

		two := events(seq+1000, seq+2000)
		answer(c, 1, int16(code))
		err := p.Produce(within(t), two)
		var re *relay.RefusedError
		var te *relay.TopicError
		is := verdicts[kafka.Error(code)]
		fits := false
		switch is {
		case refused:
			fits = errors.As(err, &re) && re.Indexes == nil && errors.Is(err, kafka.Error(code))
		case closed:
			fits = errors.As(err, &te) && te.Topic == "orders"
		case fenced:
			fits = errors.Is(err, relay.ErrFenced)
		default:
			fits = err != nil && !certain(err)
		}
		if !fits {
			t.Errorf("code %d (verdict %d): got %v", code, is, err)
		}
		if is == fenced {
			_ = p.Close()
			want = append(want, seq)
			continue
		}
		insist(t, p, two) // of each class but the last, the caller may send it again
		_ = p.Close()
		want = append(want, seq, seq+1000, seq+2000)
		last := seen.all()[len(seen.all())-1]
		switch is {
		case anew, refused:
			fits = last.producerID >= 0 && last.producerID != from.producerID && last.sequence == 0
		case notIdempotent:
			fits = last.producerID == -1 && last.sequence == -1
		default:
			fits = last.producerID == from.producerID && last.sequence == 1
		}
		if !fits {
			t.Errorf("code %d (verdict %d): sent again as producer %d, sequence %d after producer %d, sequence %d", code, is, last.producerID, last.sequence, from.producerID, from.sequence)
		}
	}
	if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, want) {
		t.Errorf("the log has %d records, want %d: each once, and in order", len(got), len(want))
	}
}

// The page that operators read says what the code does.
func TestThePageAboutKafkasAnswersIsTrue(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/kafka-errors.md")
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]verdict{
		"outcome unknown": again, "leader moved": moved, "topic unknown here": absent, "sequence lost": anew, "record refused": refused,
		"topic refused": closed, "producer fenced": fenced, "idempotence refused": notIdempotent, "compression refused": notCompressed,
	}
	code := regexp.MustCompile(`(\d+) ([A-Z][A-Z_]+)`)
	listed := map[kafka.Error]verdict{}
	for line := range bytes.Lines(page) {
		cells := strings.Split(string(line), "|")
		if len(cells) < 4 {
			continue
		}
		is, known := classes[strings.TrimSpace(cells[1])]
		if !known {
			continue
		}
		delete(classes, strings.TrimSpace(cells[1]))
		for _, m := range code.FindAllStringSubmatch(cells[2], -1) {
			n, _ := strconv.Atoi(m[1])
			e := kafka.Error(n)
			if _, twice := listed[e]; twice {
				t.Errorf("code %d is listed twice", n)
			}
			listed[e] = is
			if verdicts[e] != is {
				t.Errorf("code %d is under %q, the code treats it as %d", n, strings.TrimSpace(cells[1]), verdicts[e])
			}
			var named *kerr.Error
			if err := kerr.ErrorForCode(int16(n)); !errors.As(err, &named) || named.Message != m[2] {
				t.Errorf("code %d is called %s, the protocol says %v", n, m[2], err)
			}
		}
	}
	if len(classes) > 0 {
		t.Errorf("the page has no row for %v", classes)
	}
	for e, is := range verdicts {
		if _, ok := listed[e]; !ok {
			t.Errorf("code %d (verdict %d) is not on the page", int(e), is)
		}
	}
}
