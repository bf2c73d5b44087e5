package consumer

import (
	"reflect"
	"strconv"
	"testing"
)

// The short statement writes a position and nothing else, so that it may only be
// taken for a guard of which nothing else has changed. Each field of a row is
// changed alone, also one that is added tomorrow.
func TestTheShortStatementIsTakenOnlyWhereNothingButThePositionHasChanged(t *testing.T) {
	t.Parallel()
	fresh := func() (*entry, *Row) {
		e := &entry{}
		e.was.row = Row{Epoch: 5, Token: 2, Seq: 7, Missed: Missed{{3, 4}}, StartEpoch: 5, StartSeq: 1, Settled: true}
		row := e.was.row
		e.row = &row
		return e, &row
	}
	if e, row := fresh(); true {
		row.Epoch, row.Token, row.Seq = 6, 1, 1
		if !e.advanced() {
			t.Error("a guard that has got on takes the long statement")
		}
	}
	for i := range reflect.TypeFor[Row]().NumField() {
		name := reflect.TypeFor[Row]().Field(i).Name
		e, row := fresh()
		switch f := reflect.ValueOf(row).Elem().Field(i); f.Kind() {
		case reflect.Int64:
			f.SetInt(f.Int() + 1)
		case reflect.Bool:
			f.SetBool(!f.Bool())
		case reflect.String:
			f.SetString("gap")
		case reflect.Slice:
			row.Missed = Missed{{3, 5}}
		default:
			t.Fatalf("the test can't change %s", name)
		}
		position := name == "Epoch" || name == "Token" || name == "Seq"
		if e.advanced() != position {
			t.Errorf("with another %s advanced is %v", name, !position)
		}
	}
	for name, change := range map[string]func(*entry){
		"no row":            func(e *entry) { e.row = nil },
		"no token":          func(e *entry) { e.row.Token = 0 }, // the short one can't write null
		"more parked":       func(e *entry) { e.parked++ },
		"more bytes parked": func(e *entry) { e.bytes++ },
		"to be rechecked":   func(e *entry) { e.recheck = true },
	} {
		e, _ := fresh()
		if change(e); e.advanced() {
			t.Errorf("%s: the short statement is taken", name)
		}
	}
}

func TestWhichGuardsAreThereIsRememberedWithinABound(t *testing.T) {
	t.Parallel()
	n := newKnown()
	key := func(i int) StreamKey { return StreamKey{"s", strconv.Itoa(i)} }
	for i := range 5 * knownStreams {
		n.note([]StreamKey{key(i)})
	}
	if len(n.young) > knownStreams || len(n.old) > knownStreams {
		t.Errorf("%d and %d streams are remembered, want %d at most", len(n.young), len(n.old), knownStreams)
	}
	if got := n.strangers([]StreamKey{key(0), key(5*knownStreams - 1)}); len(got) != 1 || got[0] != key(0) {
		t.Errorf("strangers are %v, want the first key, which was long ago", got)
	}
}
