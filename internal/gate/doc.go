// Package gate holds the one type that the packages fencing and outbox share,
// so that neither imports the other.
package gate

// Pass says which gate a transaction has passed: what a receipt says, plus the
// schema that it is in. It proves nothing by itself; the database looks the
// receipt up.
type Pass struct {
	// Schema is the schema of the fence, unquoted.
	Schema string
	// Key is the fenced key.
	Key string
	// Epoch and Token are the holder's.
	Epoch, Token int64
	// Step is the step of the commit.
	Step string
}
