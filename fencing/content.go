package fencing

import (
	"strings"
	"unicode/utf8"
)

// Content names one commit and says what it commits.
//
// Everything that determines the effect of the commit belongs into Bytes: a
// retry is answered "replayed" when they are the same and "conflict" when they
// differ, whatever its callback would write this time. Serialise once and keep
// the bytes; a retry that serialises anew may order its fields differently.
type Content struct {
	// Step names one of several commits under one token. At most 128 bytes of
	// UTF-8; empty only for a lease that commits once.
	Step string
	// Type is the content type of Bytes. It is part of the digest.
	Type string
	// Bytes is the content.
	Bytes []byte
	// Algorithm is how the two become the digest of the receipt. Defaults to
	// RawBytes.
	Algorithm Algorithm
}

func (c Content) validate() error {
	switch {
	case len(c.Step) > 128:
		return &InvalidError{"step", "has more than 128 bytes"}
	case strings.HasPrefix(c.Step, "fenceline:"):
		return &InvalidError{"step", "begins with fenceline:, which is the toolkit's own"}
	case !validText(c.Step):
		return &InvalidError{"step", "is not UTF-8 without NUL"}
	}
	if c.Algorithm.orDefault() == RawBytes {
		return nil
	}
	_, err := c.Digest()
	return err
}

// isFunc refuses a callback that is missing.
func isFunc(there bool) error {
	if !there {
		return &InvalidError{"callback", "is nil: one that writes nothing is func(context.Context, Tx) error { return nil }"}
	}
	return nil
}

func validateKey(key string) error {
	switch {
	case key == "":
		return &InvalidError{"key", "is empty: name what the lease is for, in 1 to 512 bytes of UTF-8"}
	case len(key) > 512:
		return &InvalidError{"key", "has more than 512 bytes"}
	case !validText(key):
		return &InvalidError{"key", "is not UTF-8 without NUL"}
	}
	return nil
}

// PostgreSQL's text has no NUL.
func validText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for i := range len(s) {
		if s[i] == 0 {
			return false
		}
	}
	return true
}
