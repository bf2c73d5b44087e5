package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strings"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
)

const leaseUsage = `Usage:
  relay lease list|show|expire|own [flags]

"relay lease list -help" prints the flags of list, and so on.
`

func leaseHelp(_ context.Context, args []string, stdout, stderr io.Writer) error {
	return group("relay lease", "list, show, expire and own", leaseUsage, args, stdout, stderr)
}

// group is a command that has only commands below it.
func group(name, below, usage string, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) == 0:
		fmt.Fprint(stderr, usage)
		return &config.UsageError{Err: fmt.Errorf("%s: a command is missing", name)}
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help":
		fmt.Fprint(stdout, usage)
		return nil
	}
	are := "are"
	if !strings.Contains(below, " and ") {
		are = "is only"
	}
	return &config.UsageError{Err: fmt.Errorf("%s: unknown command %s: there %s %s", name, config.Shown(args[0]), are, below)}
}

// operation is what the lease and history commands share.
type operation struct {
	postgres config.Postgres
	who      string
	asJSON   bool
}

// changing adds the name that is noted with the change.
func (o *operation) changing(s *config.Set) {
	s.String(&o.who, "who", "OPERATOR", me(), "who does this, to be noted with it", config.Required(), config.Check(func(v string) error {
		if len(v) > 255 {
			return errors.New("want 1 to 255 bytes")
		}
		return nil
	}))
}

func me() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "unknown"
}

// with runs f as an operator; kind is the role that f needs.
func (o *operation) with(ctx context.Context, name, kind string, f func(*fencing.Operator) error) error {
	pool, err := o.postgres.Open(ctx, name)
	if err != nil {
		return err
	}
	defer pool.Close()
	op, err := fencing.NewOperator(ctx, pool, o.postgres.Schema)
	if err == nil {
		err = f(op)
	}
	return config.NeedsRole(err, o.postgres.Schema, kind)
}

// print prints a report, as text or as JSON.
func (o *operation) print(stdout io.Writer, report interface{ text() string }) error {
	if !o.asJSON {
		_, err := io.WriteString(stdout, report.text())
		return err
	}
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(report)
}

// onlyArgument is the one argument behind the flags.
func onlyArgument(s *config.Set, what string) (string, error) {
	if args := s.Arguments(); len(args) == 1 && args[0] != "" {
		return args[0], nil
	}
	return "", &config.UsageError{Err: fmt.Errorf("%s: want one %s behind the flags; one with spaces needs quotes", s.Name, what)}
}

func leaseList(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		o      operation
		filter fencing.LeaseFilter
	)
	s := config.New("relay lease list", "Lists the leases: who holds which key, until when, and who waits. A login with the role <schema>_monitor is enough.")
	o.postgres.Register(s)
	s.String(&filter.Prefix, "prefix", "", "", "list keys that begin with this")
	s.String(&filter.After, "after", "", "", "list keys behind this one, to go on with a long list")
	s.Bool(&filter.System, "system", "", "list the toolkit's own leases instead of the users'")
	s.Int(&filter.Limit, "limit", "", 100, 1, 100_000, "list so many at most")
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return o.with(ctx, s.Name, schema.KindMonitor, func(op *fencing.Operator) error {
		ask := filter
		ask.Limit++ // one more tells whether there are more
		leases, err := op.Leases(ctx, ask)
		if err != nil {
			return err
		}
		r := leaseReport{More: len(leases) > filter.Limit, Leases: []leaseLine{}}
		for _, l := range leases[:min(len(leases), filter.Limit)] {
			r.Leases = append(r.Leases, newLeaseLine(l))
		}
		return o.print(stdout, r)
	})
}

// leaseReport is what "relay lease list" prints. The JSON names of this file
// are relied on by scripts: add some, change none.
type leaseReport struct {
	Leases []leaseLine `json:"leases"`
	More   bool        `json:"more"`
}

type leaseLine struct {
	Key           string     `json:"key"`
	State         string     `json:"state"`
	Holder        string     `json:"holder"`
	Epoch         int64      `json:"epoch"`
	Token         int64      `json:"token"`
	Expires       *time.Time `json:"expires"` // null: given up
	Remaining     float64    `json:"remaining_seconds"`
	Successor     string     `json:"successor"`
	ReservedUntil *time.Time `json:"reserved_until"`
	Waiter        string     `json:"waiter"`
	Owner         string     `json:"owner"`
}

func newLeaseLine(l fencing.LeaseInfo) leaseLine {
	return leaseLine{l.Position.Key, string(l.State), l.Holder, l.Position.Epoch, l.Position.Token, maybe(l.ExpiresAt), l.Remaining.Seconds(), l.Successor, maybe(l.ReservedUntil), l.Waiter, l.Owner}
}

// maybe is nil for no time, for JSON.
func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (l leaseLine) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q (%d, %d) %s", l.Key, l.Epoch, l.Token, l.State)
	switch fencing.LeaseState(l.State) {
	case fencing.LeaseHeld:
		fmt.Fprintf(&b, " by %q for another %.1f s", l.Holder, l.Remaining)
	case fencing.LeaseExpired:
		fmt.Fprintf(&b, " for %.1f s, was %q's", -l.Remaining, l.Holder)
	case fencing.LeaseReserved:
		fmt.Fprintf(&b, " for %q until %s, was %q's", l.Successor, clock(*l.ReservedUntil), l.Holder)
	default:
		fmt.Fprintf(&b, ", was %q's", l.Holder)
	}
	if l.Waiter != "" {
		fmt.Fprintf(&b, ", %q waits", l.Waiter)
	}
	if l.Owner != "" {
		fmt.Fprintf(&b, ", belongs to login %q", l.Owner)
	}
	return b.String() + "\n"
}

func (r leaseReport) text() string {
	var b strings.Builder
	for _, l := range r.Leases {
		b.WriteString(l.text())
	}
	switch {
	case len(r.Leases) == 0:
		b.WriteString("no leases\n")
	case r.More:
		fmt.Fprintf(&b, "there are more: go on with -after %s\n", config.Typed(r.Leases[len(r.Leases)-1].Key))
	}
	return b.String()
}

func leaseShow(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		o     operation
		turns int
	)
	s := config.New("relay lease show", "Shows who holds a key, where its fence is, and who held it before. A login with the role <schema>_monitor is enough.")
	s.Args = " KEY"
	o.postgres.Register(s)
	s.Int(&turns, "turns", "", 20, 1, 10_000, "show so many of the latest steps")
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	key, err := onlyArgument(s, "key")
	if err != nil {
		return err
	}
	return o.with(ctx, s.Name, schema.KindMonitor, func(op *fencing.Operator) error {
		info, err := op.Show(ctx, key, turns)
		if err != nil {
			return unknown(key, err)
		}
		r := keyReport{Key: key, Epoch: info.Fence.Epoch, Token: info.Fence.Token, Closed: maybe(info.ClosedAt), Owner: info.Owner, Turns: []turnLine{}}
		if info.Lease != nil {
			l := newLeaseLine(*info.Lease)
			r.Lease = &l
		}
		for _, t := range info.Turns {
			r.Turns = append(r.Turns, turnLine{t.At.UTC(), t.Why, t.Position.Epoch, t.Position.Token, t.Holder, t.Whom, t.Login})
		}
		return o.print(stdout, r)
	})
}

// unknown says of a key that there is nothing of it, in place of the library's
// error.
func unknown(key string, err error) error {
	if !errors.Is(err, fencing.ErrUnknownKey) {
		return err
	}
	return fmt.Errorf("key %q has no fence: it was never acquired or opened, or it was closed and swept; relay lease list -prefix P shows which keys there are", key)
}

// keyReport is what "relay lease show" prints.
type keyReport struct {
	Key    string     `json:"key"`
	Epoch  int64      `json:"epoch"`
	Token  int64      `json:"token"`
	Closed *time.Time `json:"closed"`
	Owner  string     `json:"owner"`
	Lease  *leaseLine `json:"lease"` // null: nobody has acquired the key (token 0), or its lease lives elsewhere
	Turns  []turnLine `json:"turns"`
}

type turnLine struct {
	At     time.Time `json:"at"`
	Why    string    `json:"why"`
	Epoch  int64     `json:"epoch"`
	Token  int64     `json:"token"`
	Holder string    `json:"holder"`
	Whom   string    `json:"whom"`
	Login  string    `json:"login"`
}

func (r keyReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "fence  %q (%d, %d)", r.Key, r.Epoch, r.Token)
	if r.Closed != nil {
		fmt.Fprintf(&b, ", closed since %s", clock(*r.Closed))
	}
	if r.Owner != "" {
		fmt.Fprintf(&b, ", belongs to login %q", r.Owner)
	}
	b.WriteString("\nlease  ")
	switch {
	case r.Token == 0 && r.Closed == nil && r.Lease != nil:
		b.WriteString("nobody has acquired the key since it was opened; before: " + r.Lease.text())
	case r.Token == 0:
		b.WriteString("none: nobody has acquired the key yet\n")
	case r.Lease == nil:
		b.WriteString("none of ours: its holder advances the fence itself\n")
	default:
		b.WriteString(r.Lease.text())
	}
	for _, t := range r.Turns {
		fmt.Fprintf(&b, "turn   %s (%d, %d) %s", clock(t.At), t.Epoch, t.Token, t.Why)
		if t.Holder != "" {
			fmt.Fprintf(&b, ", holder %q", t.Holder)
		}
		switch {
		case t.Whom != "" && (t.Why == "handover" || t.Why == "release"):
			fmt.Fprintf(&b, ", next %q", t.Whom)
		case t.Whom != "":
			fmt.Fprintf(&b, ", by %q", t.Whom)
		}
		if t.Login != "" {
			fmt.Fprintf(&b, ", login %q", t.Login)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func leaseExpire(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var o operation
	s := config.New("relay lease expire", "Ends the lease of a key now, or what it is kept for, so that anybody can acquire it. The holder learns of it at its next renewal. "+
		"Until somebody has acquired the key, the old holder can still commit: it is the takeover that ends that. Needs a login with the role <schema>_operator.")
	s.Args = " KEY"
	o.postgres.Register(s)
	o.changing(s)
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	key, err := onlyArgument(s, "key")
	if err != nil {
		return err
	}
	return o.with(ctx, s.Name, schema.KindOperator, func(op *fencing.Operator) error {
		holder, pos, ended, err := op.Expire(ctx, key, o.who)
		if err != nil {
			return unknown(key, err)
		}
		return o.print(stdout, expired{key, ended, holder, pos.Epoch, pos.Token})
	})
}

// expired is what "relay lease expire" prints.
type expired struct {
	Key    string `json:"key"`
	Ended  bool   `json:"ended"`
	Holder string `json:"holder"`
	Epoch  int64  `json:"epoch"`
	Token  int64  `json:"token"`
}

func (e expired) text() string {
	switch {
	case !e.Ended && e.Holder == "":
		return fmt.Sprintf("nothing to end: %q has no lease of ours\n", e.Key)
	case !e.Ended:
		return fmt.Sprintf("nothing to end: nobody holds %q\n", e.Key)
	}
	return fmt.Sprintf("ended the lease of %q, which was %q's under (%d, %d)\n", e.Key, e.Holder, e.Epoch, e.Token)
}

func leaseOwn(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		o     operation
		login string
	)
	s := config.New("relay lease own", "Assigns a key to a login, which alone can acquire and commit under it from then on. Needs a login with the role <schema>_operator.")
	s.Args = " KEY"
	o.postgres.Register(s)
	s.String(&login, "login", "", "", "the login; without it the key is every producer's again")
	o.changing(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	key, err := onlyArgument(s, "key")
	if err != nil {
		return err
	}
	return o.with(ctx, s.Name, schema.KindOperator, func(op *fencing.Operator) error {
		if err := op.SetOwner(ctx, key, login, o.who); err != nil {
			return err
		}
		if login == "" {
			_, err = fmt.Fprintf(stdout, "%q is every producer's\n", key)
		} else {
			_, err = fmt.Fprintf(stdout, "%q belongs to login %q\n", key, login)
		}
		return err
	})
}
