package replica_test

import (
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing/replica"
)

// A standby runs nothing in a SERIALIZABLE transaction, and a login may begin all of
// its transactions with that: no replica would ever be read.
func TestReplicasAreReadWhateverALoginBeginsTransactionsWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	for _, isolation := range []string{"serializable", "repeatable read"} {
		w.exec("alter role " + w.name + " set default_transaction_isolation = '" + isolation + "'")
		w.ok(standby.CatchUp(ctx))
		reader := w.reader(standby)
		lease := w.takeOver("k")
		position := w.report(lease, isolation)
		for _, point := range []replica.Point{position, replica.Generation(lease.Position())} {
			text, result, err := body(reader, "k", point, replica.WaitThenPending(15*time.Second))
			if err != nil || text != isolation || !result.Proven || result.FromPrimary() {
				t.Errorf("%s, %v: %q, %+v, %v", isolation, point, text, result, err)
			}
		}
	}
}
