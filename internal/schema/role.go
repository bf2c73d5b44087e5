package schema

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Kinds of group roles, the second argument of Role. None of them can log in;
// an administrator grants them to the logins that need them.
const (
	KindOwner    = "owner"    // owns every object; migrations run as it
	KindProducer = "producer" // commits results and events
	KindAdvancer = "advancer" // advances a fence within its own transaction
	KindRelay    = "relay"    // reads the outbox and keeps its progress
	KindOperator = "operator" // repairs, with an audit row for each repair
	KindConsumer = "consumer" // keeps the guards of a downstream service
	KindMonitor  = "monitor"  // reads counts and states, never payloads
)

var kinds = []string{KindOwner, KindProducer, KindAdvancer, KindRelay, KindOperator, KindConsumer, KindMonitor}

// Kinds returns the kinds of all group roles, the owner first.
func Kinds() []string { return slices.Clone(kinds) }

// Role returns the name of a schema's group role, unquoted:
// Role("fenceline", "owner") is fenceline_owner.
func Role(schema, kind string) string { return schema + "_" + kind }

// Expand turns an SQL template into SQL for one schema. It replaces
//
//   - @schema@ by the quoted identifier,
//   - @schema_name@ by the bare name, for use inside string literals,
//   - @owner@, @producer@, @advancer@, @relay@, @operator@, @consumer@ and
//     @monitor@ by the quoted names of the group roles.
//
// Anything else between at signs is left as it is. Expand panics on a name that
// Validate refuses: the bare name would otherwise be a way into a literal, and
// a caller that got this far has skipped the check that its user needs to see.
func Expand(template, schema string) string {
	if err := Validate(schema); err != nil {
		panic(fmt.Sprintf("schema: Expand called without Validate: %v", err))
	}
	if r, ok := replacers.Load(schema); ok {
		return r.(*strings.Replacer).Replace(template)
	}
	pairs := []string{"@schema@", Quote(schema), "@schema_name@", schema}
	for _, kind := range kinds {
		pairs = append(pairs, "@"+kind+"@", Quote(Role(schema, kind)))
	}
	r := strings.NewReplacer(pairs...)
	replacers.Store(schema, r)
	return r.Replace(template)
}

// replacers has what Expand has made, by the schema's name: to make one costs an
// append to the outbox a fifth of its time. A process knows one schema or two.
var replacers sync.Map

// WakeChannel is the channel of NOTIFY on which relays hear that there is
// something to publish, unquoted. It belongs to one database.
func WakeChannel(schema string) string { return schema + "_wake" }
