package fencing_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// asked is one call.
type asked struct {
	key, what  string // acquire, commit, close, open, sweep
	epoch      int64
	token      int64
	step, body string
}

// told is its answer.
type told struct {
	answer       string // "unknown" for one that was lost, "failed" if nothing was written
	epoch, token int64
}

// keyState is what is true of a key, in a comparable form.
type keyState struct {
	epoch, token int64
	reopened     bool // the epoch is a larger one than this, which nobody was told yet
	closed       bool
	receipts     string // sorted, one line each: epoch/token/step body
	// Receipts at or below the floor may be gone: whether one is shows when
	// somebody asks for it, and then it stays so.
	floorEpoch, floorToken int64
}

func atOrBelow(epoch, token, limitEpoch, limitToken int64) bool {
	return epoch < limitEpoch || epoch == limitEpoch && token <= limitToken
}

// swept gives the states to which a sweep can bring this one: the floor rises to
// a receipt that the fence has moved past, or stays; and the tombstone of a closed
// key goes when its receipts are gone. Nothing is known of the key then, so who
// comes next begins a life, under an epoch that is larger still, and what is asked
// for of before can be confirmed by nobody.
func (s keyState) swept() []any {
	states := []any{s}
	if s.closed {
		states = append(states, keyState{epoch: s.epoch, reopened: true, floorEpoch: s.epoch, floorToken: s.token})
	}
	for line := range lines(s.receipts) {
		var epoch, token int64
		if _, err := fmt.Sscanf(line, "%d/%d/", &epoch, &token); err != nil {
			panic(err)
		}
		past := s.reopened || epoch < s.epoch || token < s.token || s.closed
		if past && !atOrBelow(epoch, token, s.floorEpoch, s.floorToken) {
			next := s
			next.floorEpoch, next.floorToken = epoch, token
			if !slices.Contains(states, any(next)) {
				states = append(states, next)
			}
		}
	}
	return states
}

func (s keyState) without(a asked) keyState {
	var rest string
	for line := range lines(s.receipts) {
		if name, _, _ := strings.Cut(line, " "); name != attemptName(a) {
			rest += line + "\n"
		}
	}
	s.receipts = rest
	return s
}

func (s keyState) body(a asked) (string, bool) {
	var name, body string
	for line := range lines(s.receipts) {
		if _, err := fmt.Sscan(line, &name, &body); err == nil && name == attemptName(a) {
			return body, true
		}
	}
	return "", false
}

func lines(s string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for len(s) > 0 {
			i := 0
			for s[i] != '\n' {
				i++
			}
			if !yield(s[:i]) {
				return
			}
			s = s[i+1:]
		}
	}
}

func attemptName(a asked) string { return fmt.Sprintf("%d/%d/%s", a.epoch, a.token, a.step) }

func (s keyState) with(a asked) keyState {
	all := append(slices.Collect(lines(s.receipts)), attemptName(a)+" "+a.body)
	slices.Sort(all)
	s.receipts = ""
	for _, line := range all {
		s.receipts += line + "\n"
	}
	return s
}

// learn notes the epoch that somebody was told, where it is the first time.
func (s keyState) learn(epoch int64) keyState {
	if s.epoch == 0 || s.reopened && epoch > s.epoch {
		s.epoch, s.reopened = epoch, false
	}
	return s
}

// commit is the gate, as the documentation has it: the answers that it can give,
// and what is true then.
func (s keyState) commit(a asked) map[string]keyState {
	gone := atOrBelow(a.epoch, a.token, s.floorEpoch, s.floorToken)
	if body, ok := s.body(a); ok {
		answers := map[string]keyState{"conflict": s}
		if body == a.body {
			answers = map[string]keyState{"replayed": s}
		}
		if gone {
			for answer, next := range s.without(a).commit(a) {
				answers[answer] = next
			}
		}
		return answers
	}
	switch now := !s.reopened && a.epoch == s.epoch; {
	case a.what == "close" && s.closed && now && a.token == s.token:
		return map[string]keyState{"replayed": s} // the tombstone says it too
	case gone:
		return map[string]keyState{"unconfirmable": s}
	case s.reopened && a.epoch <= s.epoch:
		return map[string]keyState{"stale": s}
	case s.reopened, s.epoch == 0, a.epoch > s.epoch, now && a.token > s.token:
		return map[string]keyState{"unconfirmable": s}
	case s.closed && now:
		return map[string]keyState{"closed": s}
	case a.epoch < s.epoch || a.token < s.token:
		return map[string]keyState{"stale": s}
	}
	if a.what == "close" {
		s.closed = true
	}
	return map[string]keyState{"committed": s.with(a)}
}

// step gives the states after a call with this answer; none if it cannot be.
func (s keyState) step(a asked, t told) []any {
	if t.answer == "failed" {
		return []any{s}
	}
	var next keyState
	var answer string
	switch a.what {
	case "sweep":
		return s.swept()
	case "acquire":
		next = s
		switch {
		case t.answer == "no": // whether a lease is free is not the fence's business
			return []any{s}
		case s.closed:
			answer = "closed"
		default:
			answer = "acquired"
			next.token++
			if t.answer == answer {
				next = next.learn(t.epoch)
			}
			if t.answer == answer && (t.epoch != next.epoch || t.token != next.token) {
				return nil
			}
		}
	case "open":
		next, answer = s, "opened"
		if s.closed {
			next.closed, next.reopened, next.token = false, true, 0
		}
		if t.answer == answer {
			if next = next.learn(t.epoch); t.epoch != next.epoch {
				return nil
			}
		}
	default:
		answers := s.commit(a)
		if t.answer == "unknown" {
			if committed, ok := answers["committed"]; ok {
				return []any{s, committed}
			}
			return []any{s}
		}
		next, ok := answers[t.answer]
		if !ok {
			return nil
		}
		return []any{next}
	}
	if t.answer == "unknown" {
		return []any{s, next}
	}
	if t.answer != answer {
		return nil
	}
	return []any{next}
}

var keyModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(asked).key
			byKey[key] = append(byKey[key], op)
		}
		return slices.Collect(maps.Values(byKey))
	},
	Init: func() []any { return []any{keyState{}} },
	Step: func(state, input, output any) []any { return state.(keyState).step(input.(asked), output.(told)) },
}
