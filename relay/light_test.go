package relay

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// Most pages of a backlog are read without a running total. What such a page
// can't hold must come all the same, whole and in its place.
func TestWhatIsTooLargeForALightPageComesWholeAndInItsPlace(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	p := newProducer(t, pool, "k")
	var want []string
	add := func(payloads ...string) {
		want = append(want, payloads...)
		p.publish("a", payloads...)
	}
	small := func(n int) (some []string) {
		for i := range n {
			some = append(some, fmt.Sprint("small ", len(want)+i))
		}
		return some
	}
	large := strings.Repeat("large ", 30_000) // 180 kB
	add(small(100)...)
	add(large) // in the middle of a light page
	add(small(35)...)
	add(large, large, "between", large)
	add(small(200)...)
	add(large) // the last one

	r := testReader(t, pool, 20, 256<<10)
	light := 0
	var got []string
	ch, err := r.poll(bg, start(), everything, bound{})
	for {
		if err != nil {
			t.Fatal(err)
		}
		weight := 0
		for _, row := range ch.rows {
			got = append(got, string(row.Payload))
			weight += row.weight
		}
		if len(ch.rows) > 20 || weight > 256<<10+len(large)+1024 {
			t.Errorf("a page of %d rows that weigh %d", len(ch.rows), weight)
		}
		if ch.after.boundary() {
			break
		}
		if _, _, ok := r.sizes.light(r.rows, r.bytes); ok {
			light++
		}
		ch, err = r.next(bg, ch.after, everything)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d events read, %d were committed, or others", len(got), len(want))
	}
	if light < 5 {
		t.Errorf("only %d pages were light: the test would prove nothing", light)
	}
}

func TestALightPageIsNeverMuchLargerThanAnother(t *testing.T) {
	t.Parallel()
	const rows, limit = 4000, 2 << 20
	for _, average := range []int{513, 900, 2000, 50_000, 900_000} {
		s := sizes{average: average, largest: average}
		n, small, ok := s.light(rows, limit)
		if !ok || n < 1 || n > rows || n*small > 8*limit {
			t.Errorf("average %d: %d rows of up to %d bytes: %d, %t", average, n, small, n*small, ok)
		}
		s.largest = 100 * average
		if _, small, ok := s.light(rows, limit); ok && s.largest > small {
			t.Errorf("average %d: light though the largest is %d and the limit %d", average, s.largest, small)
		}
	}
	if _, _, ok := (&sizes{}).light(rows, limit); ok {
		t.Error("light though nothing is known")
	}
}

func TestAColumnOfAnotherTypeIsAnErrorAndNeverAGuess(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][][]byte{
		"too few columns": {make([]byte, 8), make([]byte, 16)},
		"a number of three bytes": func() [][]byte {
			v := make([][]byte, 40)
			for i := range v {
				v[i] = make([]byte, 3)
			}
			v[0] = make([]byte, 8)
			return v
		}(),
	} {
		p := page{limit: 10, bytes: 1000}
		if err := p.scan(&fields{values: values}); err == nil || !strings.Contains(err.Error(), "of the same version") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestTimesComeOutAsPostgresHasThemAndInfinityIsNoReasonToStop(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	conn := readerConn(t, pool)
	for text, want := range map[string]time.Time{
		"2024-05-06 07:08:09.123456+00":    time.Date(2024, 5, 6, 7, 8, 9, 123456000, time.UTC),
		"1969-12-31 23:59:59.999999+00":    time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC),
		"1999-12-31 23:59:59.999999+00":    time.Date(1999, 12, 31, 23, 59, 59, 999999000, time.UTC),
		"infinity":                         time.Date(294276, 12, 31, 23, 59, 59, 999999000, time.UTC),
		"-infinity":                        time.Date(-4713, 11, 24, 0, 0, 0, 0, time.UTC),
		"294276-12-31 23:59:59.999999+00":  time.Date(294276, 12, 31, 23, 59, 59, 999999000, time.UTC),
		"4714-11-24 00:00:00.000000+00 BC": time.Date(-4713, 11, 24, 0, 0, 0, 0, time.UTC),
	} {
		rows, err := conn.Query(bg, "select $1::text::timestamptz", binaryFormat, text)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			f := fields{values: [][]byte{bytes.Clone(rows.RawValues()[0])}}
			if got := f.time(); !got.Equal(want) {
				t.Errorf("%s became %v, want %v", text, got, want)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
}
