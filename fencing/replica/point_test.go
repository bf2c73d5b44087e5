package replica

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestAPositionTravelsAsText(t *testing.T) {
	for _, p := range []Position{{7301234567890123456, 1, 0x16B3748}, {1, 4294967295, 1<<64 - 1}, {9, 2, 1 << 32}} {
		got, err := ParsePosition(p.String())
		if err != nil || got != p {
			t.Errorf("%v: %v, %v", p, got, err)
		}
		text, err := json.Marshal(struct{ At Position }{p})
		var back struct{ At Position }
		if err != nil || json.Unmarshal(text, &back) != nil || back.At != p {
			t.Errorf("%s: %v, %v", text, back, err)
		}
	}
	if got := (Position{7301234567890123456, 1, 0x16B3748}).String(); got != "wal:7301234567890123456:1:0/16B3748" {
		t.Errorf("the text has changed: %s", got)
	}
	for _, text := range []string{
		"", "wal", "wal:1:1:0/0", "wal:0:1:0/1", "wal:1:0:0/1", "wal:-1:1:0/1", "wal:1:1:1", "wal:1:1:0/1:", "lsn:1:1:0/1",
		"wal:1:4294967296:0/1", "wal:1:1:100000000/1", "wal:01:1:0/1", "wal:1:1:0/0001", "wal:1:1:0/a", " wal:1:1:0/1", "wal:1:1:0/1' or true",
	} {
		if p, err := ParsePosition(text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v, %v, want ErrInvalid", text, p, err)
		}
	}
}

func TestFrom19OnTheServerWaitsItself(t *testing.T) {
	for version, want := range map[int]string{
		150012: "", 180003: "", 189999: "",
		190000: "wait for lsn '2/A' with (mode 'standby_replay', timeout '1500ms', no_throw)",
		200001: "wait for lsn '2/A' with (mode 'standby_replay', timeout '1500ms', no_throw)",
	} {
		if got := sqlWait(version, 2<<32|10, 1500*time.Millisecond); got != want {
			t.Errorf("%d: %q, want %q", version, got, want)
		}
	}
	// 0 would wait for ever.
	if got := sqlWait(190000, 1, time.Microsecond); got != "wait for lsn '0/1' with (mode 'standby_replay', timeout '1ms', no_throw)" {
		t.Error(got)
	}
}

func TestAConflictWithReplayIsToldFromACancelledStatement(t *testing.T) {
	for _, c := range []struct {
		code, message, routine string
		want                   bool
	}{
		{"40001", "canceling statement due to conflict with recovery", "", true},
		{"40001", "annulation", "", true}, // another language
		{"40P01", "canceling statement due to conflict with recovery", "", true},
		{"57014", "canceling statement due to conflict with recovery", "", true},
		{"57014", "annulation", "ProcessRecoveryConflictInterrupt", true},
		{"57014", "canceling statement due to statement timeout", "ProcessInterrupts", false},
		{"57014", "annulation", "ProcessInterrupts", false},
		{"25006", "cannot execute INSERT in a read-only transaction", "", false},
	} {
		if got := recoveryConflict(&pgconn.PgError{Code: c.code, Message: c.message, Routine: c.routine}); got != c.want {
			t.Errorf("%s %s: %v", c.code, c.message, got)
		}
	}
}

func TestWhatIsAskedForIsCheckedFirst(t *testing.T) {
	good := Position{1, 1, 1}
	for _, c := range []struct {
		policy Policy
		point  Point
	}{
		{Policy{}, good},
		{WaitThenPrimary(-1), good},
		{WaitThenPrimary(time.Second), nil},
		{WaitThenPending(time.Second), nil},
		{Primary(), Position{}},
		{Primary(), Generation{Key: "k", Epoch: 1}},
		{Primary(), Generation{Epoch: 1, Token: 1}},
	} {
		if err := c.policy.validate(c.point); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v, %v: %v, want ErrInvalid", c.policy, c.point, err)
		}
	}
	for _, policy := range []Policy{Primary(), MarkedStale(0)} {
		if err := policy.validate(nil); err != nil {
			t.Errorf("%v without a point: %v", policy, err)
		}
	}
}
