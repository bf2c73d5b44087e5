package sqltext

import "sync"

const (
	// memoTexts bounds how many texts are remembered, and memoLength how long one
	// may be. A program has few of them, which it sends again and again.
	memoTexts  = 512
	memoLength = 4 << 10
)

// verdict is what there is to say of a text.
type verdict struct{ ends, changes, empty bool }

var memo struct {
	sync.RWMutex
	texts map[string]verdict
}

// look reads a text, or remembers what it has read.
func look(sql string) verdict {
	memo.RLock()
	v, ok := memo.texts[sql]
	memo.RUnlock()
	if ok {
		return v
	}
	v = verdict{endsTransaction(sql), changesSettings(sql), empty(sql)}
	if len(sql) > memoLength {
		return v
	}
	memo.Lock()
	defer memo.Unlock()
	if memo.texts == nil || len(memo.texts) >= memoTexts {
		memo.texts = map[string]verdict{} // whoever makes each text anew has no use for it
	}
	memo.texts[sql] = v
	return v
}
