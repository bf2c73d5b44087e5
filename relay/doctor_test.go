package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// examined is what the doctor says, a finding a line.
func examined(t *testing.T, pool *pgxpool.Pool, pub Publisher, topics ...string) string {
	t.Helper()
	var b strings.Builder
	for _, f := range Examine(bg, pool, pub, topics, quick()) {
		fmt.Fprintf(&b, "%s %s: %s (%s)\n", f.Grade, f.About, f.Text, f.Remedy)
	}
	return b.String()
}

func says(t *testing.T, said string, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if !strings.Contains(said, s) {
			t.Errorf("no %q in\n%s", s, said)
		}
	}
}

func TestTheDoctorDoesNotSayThatThereIsNothingWhereItCouldNotLook(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	says(t, examined(t, pool, kafka), "warning topics: there are no events yet")
	newProducer(t, pool, "k").publish("a", "1")
	says(t, examined(t, pool, kafka), "ok topic a: 3 partitions, max.message.bytes 1048588")

	// A right is missing for one of the tables, or for all of them.
	if _, err := pool.Exec(bg, "revoke select on fenceline.head from fenceline_monitor; revoke select on fenceline.relay_topic from fenceline_relay"); err != nil {
		t.Fatal(err)
	}
	for who, texts := range map[string][]string{
		"fenceline_monitor":  {"problem topics: can't be looked at: ", "permission denied for table head", "ok topic b: 3 partitions"},
		"fenceline_relay":    {"problem topic a: what the relay has noted about it can't be looked at: ", "permission denied for table relay_topic"},
		"fenceline_consumer": {"problem topics: can't be looked at: ", "problem history: can't be looked at: ", "ok topic b: 3 partitions"},
	} {
		said := examined(t, asRole(t, pool, who), kafka, "b")
		if who == "fenceline_relay" {
			says(t, said, texts...)
			continue
		}
		says(t, said, append(texts, "warning topics: to which ones events were appended can't be seen")...)
		if strings.Contains(said, "no events yet") {
			t.Errorf("%s is told that there are no events:\n%s", who, said)
		}
	}
	cfg := quick()
	cfg.Schema = "elsewhere"
	said := fmt.Sprint(Examine(bg, pool, kafka, nil, cfg))
	says(t, said, "schema missing", "can't be seen")
	if strings.Contains(said, "no events yet") {
		t.Errorf("without a schema there are said to be no events:\n%s", said)
	}
}

// asked is a broker in memory that is asked for rights.
type asked struct {
	*memory
	may, known bool
	err        error
}

func (a asked) MayWrite(context.Context, string) (may, known bool, err error) {
	return a.may, a.known, a.err
}

func TestTheDoctorSaysWhetherTheRightToWriteIsThereOrWasNotChecked(t *testing.T) {
	t.Parallel()
	pool, kafka := pgmigrated.Pool(t), newMemory(t, "a")
	for want, pub := range map[string]Publisher{
		"warning topic a: whether this login may write to it was not checked": kafka, // which can't be asked
		"ok topic a: this login may write to it":                              asked{kafka, true, true, nil},
		"problem topic a: this login may not write to it (grant it Write":     asked{kafka, false, true, nil},
		"not checked: the broker doesn't tell (see that the login of":         asked{kafka, false, false, nil},
		"warning topic a: whether this login may write to it could not be":    asked{kafka, true, true, errors.New("no answer")},
	} {
		says(t, examined(t, pool, pub, "a"), want)
	}
}

// unanswering answers for no topic but one; it counts how often it was asked.
type unanswering struct {
	*memory
	but   string
	asked *int
}

func (u unanswering) Describe(ctx context.Context, topic string) (Topic, error) {
	*u.asked++
	if topic == u.but {
		return u.memory.Describe(ctx, topic)
	}
	return Topic{}, &NoAnswerError{topic, "connection refused", errors.New("connection refused")}
}

func TestTheDoctorTellsOneCauseOnceAndWaitsForItTwiceAtMost(t *testing.T) {
	t.Parallel()
	pool, kafka := pgmigrated.Pool(t), newMemory(t, "a")
	asked := 0
	said := examined(t, pool, unanswering{kafka, "a", &asked}, "a", "b", "c", "d", "e")
	says(t, said, "ok topic a: ", "problem topic b, topic c: can't be looked at: connection refused; nor 2 further topics (see that")
	if n := strings.Count(said, "connection refused"); n != 1 || asked != 3 {
		t.Errorf("said %d times, asked %d times:\n%s", n, asked, said)
	}
	says(t, examined(t, pool, unanswering{kafka, "a", &asked}, "a", "b"), "ok topic a: ", "problem topic b: can't be looked at: connection refused (see that")
}
