package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

func at(xmax uint64, xip ...uint64) snapshot { return snapshot{text: "s", xmax: xmax, xip: xip} }

// Between xmax and the next id are transactions that run and are in no list. A bound
// that was read while they did holds for later snapshots only.
func TestAPollsBoundHoldsOnceItsTransactionsAreInTheSnapshot(t *testing.T) {
	t.Parallel()
	b := bounds{high: 10}
	for i, step := range []struct {
		s2   snapshot
		next uint64
		high int64
		want bound
	}{
		{at(100), 103, 20, bound{}},                // 100 to 102 run
		{at(102, 100), 105, 30, bound{}},           // 102 may have had its position when 10 was read
		{at(104, 100), 107, 40, bound{10, 103}},    // and is now in the list, or has ended
		{at(106, 100), 107, 50, bound{}},           // 106 runs
		{at(107, 100), 107, 60, bound{50, 107}},    // nobody runs that isn't in the list
		{at(107), 107 + 1<<31 - 1, 70, bound{}},    // age() of an id that is none
		{at(108), 109, 80, bound{}},                // is no reason to wait for that one
		{at(109), 111, 90, bound{70, 109}},         // to come
		{at(4000, 200), 4000, 91, bound{90, 4000}}, // a newer one is better than one that was waited for
		{at(4001), 4002, 92, bound{}},
	} {
		if got := b.at(step.s2, step.next, step.high); got != step.want {
			t.Errorf("step %d: %+v, want %+v", i, got, step.want)
		}
	}
}

func TestTransactionsThatAreYoungerThanTheBoundAreNoStragglers(t *testing.T) {
	t.Parallel()
	xids := []uint64{5, 7, 9}
	for young, want := range map[uint64]int{0: 3, 5: 0, 6: 1, 7: 1, 9: 2, 10: 3} {
		if got := (cursor{young: young}).late(xids); len(got) != want {
			t.Errorf("from %d on: %v are late, want %d of them", young, got, want)
		}
	}
	if got := (bound{10, 7}).better(bound{10, 0}); got.young != 7 {
		t.Errorf("what is known of a bound is forgotten for the same one: %+v", got)
	}
	if got := (bound{10, 0}).better(bound{10, 7}); got.young != 7 {
		t.Errorf("what is known of a bound is not taken: %+v", got)
	}
}

// While events come, polls move the low bound without statements of their own, and
// so walk over a few rows only.
func TestPollsMoveTheLowBoundWhileEventsCome(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	r := testReader(t, pool, 100, 1<<20)
	p := newProducer(t, pool, "k")
	c := start()
	var read []int64
	for i := range 20 {
		p.publish("a", fmt.Sprint(i))
		ch, err := r.poll(bg, c, everything, bound{c.low, c.young})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range ch.rows {
			read = append(read, row.Pos)
		}
		c = ch.after
	}
	if want := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}; !slices.Equal(read, want) {
		t.Errorf("read %v, want %v", read, want)
	}
	// Others of the same server may hold a bound back for a poll or two.
	if c.low < 10 || c.young == 0 {
		t.Errorf("after 20 events the cursor is %+v, want a low bound not far behind", c)
	}
}

// The parts of a poll come one after the other by habit, and so does what a page
// leaves out. Were it otherwise, a row that comes late must not be passed over.
func TestARowThatComesBehindThePageIsNotPassedOver(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "2", "3", "4")
	sql := newStatements("fenceline")
	r := testReader(t, pool, 2, 1<<20)
	for order, want := range map[string][]int64{
		"pos":           {1, 2},
		"pos desc":      nil,
		"pos < 3, pos":  nil, // 3, 4, 1, 2
		"pos in (1, 2)": nil, // 3, 4 and then 1, 2 in some order
	} {
		pg := page{limit: 2, bytes: 1 << 20, small: 1000}
		rows, err := r.query(bg, "select * from ("+sql.light+") x order by "+order, 10, 1000, []string{}, false, int64(-1), "3:3:", "1000000:1000000:", 0, 10)
		if err := pg.collect(rows, err, nil); err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, row := range pg.rows {
			got = append(got, row.Pos)
		}
		if !slices.Equal(got, want) || !pg.full() {
			t.Errorf("by %s: a page of %v, full: %t; want %v, and more to come", order, got, pg.full(), want)
		}
	}
}

// Nor one that is left out for its size.
func TestALargeRowThatComesLateIsNotPassedOver(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	newProducer(t, pool, "k").publish("a", "1", strings.Repeat("x", 2000), "3", "4")
	r := testReader(t, pool, 2, 1<<20)
	pg := page{limit: 5, bytes: 1 << 20, small: 1000}
	rows, err := r.query(bg, "select * from ("+newStatements("fenceline").light+") x order by pos = 2, pos", 10, 1000, []string{}, false, int64(-1), "3:3:", "1000000:1000000:", 0, 10)
	if err := pg.collect(rows, err, nil); err != nil {
		t.Fatal(err)
	}
	if len(pg.rows) != 0 || !pg.full() {
		t.Errorf("a page of %d rows, full: %t; want none, and more to come", len(pg.rows), pg.full())
	}
}
