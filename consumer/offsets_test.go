package consumer

import (
	"testing"

	"github.com/google/uuid"
)

func TestReadingBeginsAtTheLowerOffsetAndALossIsNeverSilent(t *testing.T) {
	id := uuid.New()
	at := func(next int64) stored { return stored{next: next, last: id, overflow: NoOffset} }
	over := func(next, overflow int64) stored { return stored{next: next, last: id, overflow: overflow} }
	for name, c := range map[string]struct {
		in                   placement
		offset               int64
		begin, restart, flag bool
		alarms               []AlarmKind
	}{
		"nothing known, whole log":               {placement{stored: stored{next: NoOffset, overflow: NoOffset}, committed: NoOffset, end: 9}, 0, true, false, false, nil},
		"nothing known, log cut, baseline":       {placement{stored: stored{next: NoOffset, overflow: NoOffset}, committed: NoOffset, start: 4, end: 9}, 4, true, false, false, nil},
		"nothing known, log cut, from origin":    {placement{stored: stored{next: NoOffset, overflow: NoOffset}, committed: NoOffset, start: 4, end: 9, origin: true}, 4, true, true, true, []AlarmKind{Truncated}},
		"database lost, kafka knows":             {placement{stored: stored{next: NoOffset, overflow: NoOffset}, committed: 7, end: 9}, 0, true, false, false, []AlarmKind{OffsetAhead}},
		"database lost, kafka knows, log cut":    {placement{stored: stored{next: NoOffset, overflow: NoOffset}, committed: 7, start: 4, end: 9}, 4, true, true, true, []AlarmKind{OffsetAhead, Truncated}},
		"both the same":                          {placement{stored: at(7), committed: 7, end: 9}, 7, false, false, false, nil},
		"kafka's expired":                        {placement{stored: at(7), committed: NoOffset, end: 9}, 7, false, false, false, nil},
		"kafka behind: crash between commits":    {placement{stored: at(7), committed: 5, end: 9}, 5, false, false, false, nil},
		"kafka rewound below the log":            {placement{stored: at(7), committed: 0, start: 3, end: 9}, 3, false, false, false, nil},
		"kafka ahead: restored":                  {placement{stored: at(5), committed: 7, end: 9}, 5, false, false, false, []AlarmKind{OffsetAhead}},
		"log cut up to the offset":               {placement{stored: at(7), committed: 7, start: 7, end: 9}, 7, false, false, false, nil},
		"log cut beyond the offset":              {placement{stored: at(7), committed: 7, start: 8, end: 9}, 8, false, true, true, []AlarmKind{Truncated}},
		"log ends before the offset":             {placement{stored: at(7), committed: 7, start: 0, end: 3}, 0, false, true, true, []AlarmKind{Truncated}},
		"something did not fit":                  {placement{stored: over(7, 2), committed: 2, end: 9}, 2, false, false, false, nil},
		"kafka passed what did not fit":          {placement{stored: over(7, 2), committed: 7, end: 9}, 2, false, false, false, nil},
		"kafka rewound below what did not fit":   {placement{stored: over(7, 2), committed: 1, end: 9}, 1, false, false, false, nil},
		"log cut beyond what did not fit":        {placement{stored: over(7, 2), committed: 2, start: 4, end: 9}, 4, false, true, true, []AlarmKind{Truncated}},
		"another event at the offset, log grown": {placement{stored: at(7), committed: 7, start: 0, end: 90, replaced: true}, 0, false, true, true, []AlarmKind{Truncated}},
	} {
		t.Run(name, func(t *testing.T) {
			out := locate(c.in)
			var kinds []AlarmKind
			for _, a := range out.alarms {
				kinds = append(kinds, a.Kind)
				if a.From >= a.To || a.Text == "" {
					t.Errorf("the alarm says nothing: %+v", a)
				}
			}
			if out.offset != c.offset || out.begin != c.begin || out.restart != c.restart || out.flag != c.flag || len(kinds) != len(c.alarms) {
				t.Fatalf("%+v", out)
			}
			for i := range kinds {
				if kinds[i] != c.alarms[i] {
					t.Errorf("alarms %v, want %v", kinds, c.alarms)
				}
			}
		})
	}
}
