package fencing

import "fmt"

// Position is a holder's place at the fence of a key: which life of the key,
// and which grant within it. It is all that a retry from another process needs.
type Position struct {
	// Key is what the lease is for.
	Key string
	// Epoch is the life of the key; it never comes back.
	Epoch int64
	// Token is the fencing token: one for each grant of the lease, strictly
	// increasing within the epoch.
	Token int64
}

// String gives key (epoch, token).
func (p Position) String() string { return fmt.Sprintf("%s (%d, %d)", p.Key, p.Epoch, p.Token) }

func (p Position) validate() error {
	if err := validateKey(p.Key); err != nil {
		return err
	}
	if p.Epoch < 1 {
		return &InvalidError{"epoch", fmt.Sprintf("is %d: present the one that the lease was granted with", p.Epoch)}
	}
	if p.Token < 1 {
		return &InvalidError{"token", fmt.Sprintf("is %d: present the one that the lease was granted with", p.Token)}
	}
	return nil
}
