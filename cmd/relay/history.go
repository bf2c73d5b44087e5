package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

const historyUsage = `Usage:
  relay history show|bump|confirm|policy [flags]

"relay history show -help" prints the flags of show, and so on.
`

func historyHelp(_ context.Context, args []string, stdout, stderr io.Writer) error {
	return group("relay history", "show, bump, confirm and policy", historyUsage, args, stdout, stderr)
}

func historyShow(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var o operation
	s := config.New("relay history show", "Shows whether this is the database in which the fences were issued, and what was done about it. A login with the role <schema>_monitor is enough.")
	o.postgres.Register(s)
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return o.with(ctx, s.Name, schema.KindMonitor, func(op *fencing.Operator) error {
		h, err := op.History(ctx)
		if err != nil {
			return err
		}
		r := historyReport{Same: h.Same(), Recorded: h.Recorded, Found: h.Found, Since: h.Since, LargestEpoch: h.LargestEpoch, OnNew: string(h.OnNew), Changes: []historyChange{}}
		for _, c := range h.Changes {
			r.Changes = append(r.Changes, historyChange{c.At.UTC(), c.Why, c.Who, c.Login, c.Since, c.Policy})
		}
		return o.print(stdout, r)
	})
}

// historyReport is what "relay history show" prints. The JSON names of this
// file are relied on by scripts: add some, change none.
type historyReport struct {
	Same         bool             `json:"same"`
	Recorded     fencing.Identity `json:"recorded"`
	Found        fencing.Identity `json:"found"`
	Since        int64            `json:"since"`
	LargestEpoch int64            `json:"largest_epoch"`
	OnNew        string           `json:"on_new"`
	Changes      []historyChange  `json:"changes"`
}

type historyChange struct {
	At     time.Time `json:"at"`
	Why    string    `json:"why"`
	Who    string    `json:"who"`
	Login  string    `json:"login"`
	Since  int64     `json:"since"`
	Policy string    `json:"policy"`
}

func (r historyReport) text() string {
	var b strings.Builder
	identity := func(name string, i fencing.Identity) {
		fmt.Fprintf(&b, "%-9s system %s, timeline %s, database %s, table %s\n", name, i.System, i.Timeline, i.Database, i.Table)
	}
	identity("recorded", r.Recorded)
	identity("found", r.Found)
	fmt.Fprintf(&b, "since     %d (%s), largest epoch %d\n", r.Since, clock(time.UnixMicro(r.Since)), r.LargestEpoch)
	fmt.Fprintf(&b, "on new    %s\n", r.OnNew)
	for _, c := range r.Changes {
		fmt.Fprintf(&b, "change    %s %s", clock(c.At), c.Why)
		if c.Policy != "" && c.Why == "policy" {
			fmt.Fprintf(&b, " %s", c.Policy)
		}
		if c.Who != "" {
			fmt.Fprintf(&b, " by %q", c.Who)
		}
		fmt.Fprintf(&b, ", login %q\n", c.Login)
	}
	switch {
	case r.Same:
		b.WriteString("this is the database in which the fences were issued\n")
	case r.OnNew == string(fencing.Bump):
		b.WriteString("this database was restored, promoted or copied: it begins a new history with the next lease or commit\n")
	default:
		b.WriteString("this database was restored, promoted or copied: nothing commits. If nothing that was acknowledged can have been lost, and nobody goes on with the old one: relay history confirm. Otherwise: relay history bump\n")
	}
	return b.String()
}

func historyBump(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		o     operation
		above string
	)
	s := config.New("relay history bump", "Begins a new history, because something that was acknowledged may have been lost: every key starts a new epoch with its next lease, "+
		"every lease of before ends, and retries of before whose receipt is not there are unconfirmable. It is always safe for the order of what consumers apply. Needs a login with the role <schema>_operator.")
	o.postgres.Register(s)
	s.String(&above, "above", "", "0", "largest epoch that the lost side is known to have issued, if its clock was ahead; consumers refuse epochs that are more than a day ahead of their clock", config.Check(func(v string) error {
		if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 0 || n >= outbox.MaxNumber {
			return fmt.Errorf("want a number from 0 on, below 2^62")
		}
		return nil
	}))
	o.changing(s)
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	floor, err := strconv.ParseInt(above, 10, 64)
	if err != nil {
		return &config.UsageError{Err: fmt.Errorf("%s: -above: %w", s.Name, err)}
	}
	return o.with(ctx, s.Name, schema.KindOperator, func(op *fencing.Operator) error {
		before, err := op.History(ctx)
		if err != nil {
			return err
		}
		since, err := op.Bump(ctx, floor, o.who)
		if err != nil {
			return err
		}
		return o.print(stdout, bumped{since, before.LargestEpoch})
	})
}

// bumped is what "relay history bump" prints.
type bumped struct {
	Since        int64 `json:"since"`
	LargestEpoch int64 `json:"largest_epoch_before"`
}

func (r bumped) text() string {
	return fmt.Sprintf("a new history has begun: epochs start at %d (%s), the largest one before was %d\n", r.Since, clock(time.UnixMicro(r.Since)), r.LargestEpoch)
}

func historyConfirm(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var o operation
	s := config.New("relay history confirm", "Says that this database is still the same history: nothing that was acknowledged was lost, and nobody goes on with the old one. "+
		"Epochs and leases go on. If in doubt, use \"relay history bump\". Needs a login with the role <schema>_operator.")
	o.postgres.Register(s)
	o.changing(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return o.with(ctx, s.Name, schema.KindOperator, func(op *fencing.Operator) error {
		h, err := op.History(ctx)
		if err != nil {
			return err
		}
		if h.Same() {
			_, err := fmt.Fprintln(stdout, "nothing to confirm, and nothing was changed: this is the database in which the fences were issued")
			return err
		}
		if err := op.Confirm(ctx, o.who); err != nil {
			return err
		}
		_, err = fmt.Fprintln(stdout, "confirmed: epochs go on")
		return err
	})
}

func historyPolicy(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		o     operation
		onNew string
	)
	s := config.New("relay history policy", "Sets what the database does the next time that it finds itself restored, promoted or copied: refuse until an operator has spoken, "+
		"or begin a new history by itself, as \"relay history bump\" does. It holds for every program that uses it. Needs a login with the role <schema>_operator.")
	o.postgres.Register(s)
	s.String(&onNew, "on-new", "", "", "refuse or bump", config.Required(), config.Check(config.OneOf(string(fencing.Refuse), string(fencing.Bump))))
	o.changing(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return o.with(ctx, s.Name, schema.KindOperator, func(op *fencing.Operator) error {
		if err := op.OnNewHistory(ctx, fencing.NewHistory(onNew), o.who); err != nil {
			return err
		}
		_, err := fmt.Fprintln(stdout, "in a new history:", onNew)
		return err
	})
}
