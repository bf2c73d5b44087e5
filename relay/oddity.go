package relay

import (
	"fmt"

	"github.com/fenceline/fenceline/outbox"
)

// oddity says what is wrong with a row that [outbox.Append] can't have written; empty if
// nothing is. Such a row is not published: its stream is held, so that it is
// named and somebody decides.
func (r *row) oddity() string {
	switch {
	case r.Key == "":
		return "it has no key"
	case r.Topic == "":
		return "it has no topic"
	case r.Epoch <= 0:
		return fmt.Sprintf("its epoch is %d: epochs are above 0", r.Epoch)
	case r.Token <= 0:
		return fmt.Sprintf("its token is %d: tokens are above 0", r.Token)
	case r.Seq <= 0:
		return fmt.Sprintf("its seq is %d: the first is 1", r.Seq)
	case r.shard != outbox.Shard(r.Key):
		// It may be read by another instance than the rest of its stream.
		return fmt.Sprintf("its shard is %d, and its key's is %d", r.shard, outbox.Shard(r.Key))
	case max(r.Epoch, r.Token, r.Seq) > outbox.MaxNumber:
		return fmt.Sprintf("it is at epoch %d, token %d, seq %d: none of them is above 2^62", r.Epoch, r.Token, r.Seq)
	}
	// append() takes any list: who calls it himself can name what is ours, and each
	// consumer would have to put the record aside.
	for i := range r.Headers {
		if name := r.Headers[i].Name; outbox.IsReserved(name) {
			return fmt.Sprintf("it has a header %q: ce_* and content-type come from the event's columns", name)
		}
	}
	return ""
}
