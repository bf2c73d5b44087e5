package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
)

func sweep(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		postgres config.Postgres
		log      config.Log
		cfg      fencing.SweepConfig
		asJSON   bool
	)
	s := config.New("relay sweep", "Removes what nobody can ask for any more: receipts of commits, the tombstones of closed keys, the history of who held what. "+
		"It works in small batches beside everything else, once, and can be run at any time; a login with the role <schema>_operator is enough.")
	postgres.Register(s)
	s.Duration(&cfg.RetryWindow, "retry-window", "RETRY_WINDOW", 24*time.Hour, time.Second, 10*365*24*time.Hour, "time during which a commit whose answer was lost can be asked for again; every sweep of a schema should be given the same")
	s.Duration(&cfg.Residence, "residence", "RESIDENCE", 24*time.Hour, time.Second, 10*365*24*time.Hour, "longest time that such a request can be under way, in a queue or a paused process; it comes on top of -retry-window")
	s.Int(&cfg.Batch, "batch", "SWEEP_BATCH", 200, 1, 100_000, "how much one transaction looks at")
	s.Bool(&cfg.ForeignRelay, "foreign-relay", "FOREIGN_RELAY", "something else than \"relay run\" publishes the outbox, so a tombstone goes by its age alone")
	s.Bool(&cfg.DryRun, "dry-run", "", "change nothing, and print what would go and why the rest stays")
	s.Bool(&asJSON, "json", "", "print one JSON object")
	log.Register(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	pool, err := postgres.Open(ctx, "relay sweep")
	if err != nil {
		return err
	}
	defer pool.Close()
	// What is swept is safe to lose, so the server's settings don't matter here.
	fences, err := fencing.New(ctx, pool, fencing.Config{Schema: postgres.Schema, AllowUnsafeDatabase: true, Logger: log.Logger(stderr)})
	if err != nil {
		return config.NeedsRole(err, postgres.Schema, schema.KindOperator)
	}
	swept, err := fences.Sweep(ctx, cfg)
	if err != nil && swept.Receipts+swept.Tombstones+swept.Turns == 0 {
		return config.NeedsRole(err, postgres.Schema, schema.KindOperator)
	}
	r := newSweepReport(swept)
	if asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if jsonErr := e.Encode(r); jsonErr != nil {
			return jsonErr
		}
	} else if _, textErr := io.WriteString(stdout, r.text()); textErr != nil {
		return textErr
	}
	return err // a sweep that was cut off has done what was printed
}

// sweepReport is what "relay sweep" prints. Its JSON names are relied on by
// scripts: add some, change none.
type sweepReport struct {
	DryRun     bool       `json:"dry_run"`
	Receipts   int64      `json:"receipts"`
	Tombstones int64      `json:"tombstones"`
	Turns      int64      `json:"turns"`
	AtLeast    bool       `json:"at_least"` // a dry run stopped counting
	Kept       []sweepNot `json:"kept"`
}

type sweepNot struct {
	What    string     `json:"what"`
	Reason  string     `json:"reason"`
	Count   int64      `json:"count"`
	AtLeast bool       `json:"at_least"`
	Example string     `json:"example_key"`
	Until   *time.Time `json:"until"` // null: time alone does not decide
	Meaning string     `json:"meaning"`
}

// meanings say why something is kept, and what to do where something is to do.
var meanings = map[string]string{
	fencing.KeptNewestToken: "the key's token has not changed since: a commit can still be asked for; a holder of days should rotate its token",
	fencing.KeptRetryWindow: "the retry window is open",
	fencing.KeptResidence:   "a request of the retry window can still be under way",
	fencing.KeptBusy:        "commits keep the fence busy; the next sweep tries again",
	fencing.KeptUnpublished: "the key's last events are not published; \"relay status\" says what keeps them; if another relay publishes them, say -foreign-relay",
	fencing.KeptHeld:        "a stream of the key is held because the broker refused a record; \"relay status\" says why",
}

func newSweepReport(s fencing.SweepReport) sweepReport {
	r := sweepReport{DryRun: s.DryRun, Receipts: s.Receipts, Tombstones: s.Tombstones, Turns: s.Turns, AtLeast: s.More, Kept: []sweepNot{}}
	for _, k := range s.Kept {
		n := sweepNot{What: k.What, Reason: k.Reason, Count: k.Count, AtLeast: k.More, Example: k.Example, Meaning: meanings[k.Reason]}
		if !k.Until.IsZero() {
			until := k.Until.UTC()
			n.Until = &until
		}
		r.Kept = append(r.Kept, n)
	}
	return r
}

func (r sweepReport) text() string {
	var b strings.Builder
	verb := "removed"
	if r.DryRun {
		verb = "would go"
	}
	atLeast := ""
	if r.AtLeast {
		atLeast = ", or more: counting stopped"
	}
	fmt.Fprintf(&b, "%-10s%s, %s, %s%s\n", verb, some(r.Receipts, "receipt"), some(r.Tombstones, "tombstone"), some(r.Turns, "turn"), atLeast)
	for _, k := range r.Kept {
		atLeast = ""
		if k.AtLeast {
			atLeast = "at least "
		}
		fmt.Fprintf(&b, "%-10s%s%s: %s", "kept", atLeast, some(k.Count, strings.TrimSuffix(k.What, "s")), k.Meaning)
		if k.Until != nil {
			fmt.Fprintf(&b, ", the first until %s", clock(*k.Until))
		}
		if k.Example != "" {
			fmt.Fprintf(&b, "; such as key %q", k.Example)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func some(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
