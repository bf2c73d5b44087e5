package outbox

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// An event whose size is not counted is never too large.
func TestWhatCountsAsSmallIsSmallHoweverItIsCounted(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	text := func(most int) string { return strings.Repeat("\x01", random.IntN(most+1)) } // six bytes in JSON
	small, large := 0, 0
	for range 3000 {
		e := Event{ID: uuid.New(), Topic: "t" + strings.Repeat("t", random.IntN(249)), AggregateType: text(255), Type: text(255), Source: text(1024), Subject: text(1024), ContentType: text(255)}
		key := text(512)
		for range random.IntN(40) {
			e.Headers = append(e.Headers, Header{Name: "h" + strings.Repeat("h", random.IntN(255)), Value: text(4000)})
		}
		e.Payload = make([]byte, MaxRecordBytes-random.IntN(2*maxEscaped*40*4300+3*maxOthers)%MaxRecordBytes)
		size := max(e.encodedSize(key), e.storedSize(key))
		if e.isSmall(key) {
			small++
			if size > MaxRecordBytes {
				t.Fatalf("an event of %d bytes counts as small", size)
			}
		} else {
			large++
		}
	}
	if small < 300 || large < 300 {
		t.Errorf("%d small ones and %d others show little", small, large)
	}
	if e := (Event{Payload: make([]byte, 100<<10)}); !e.isSmall("k") {
		t.Error("100 KiB are counted")
	}
}
