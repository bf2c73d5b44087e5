package fencing

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
)

// Algorithm is the way in which the content of a commit becomes the digest
// that its receipt keeps. Its text is stored beside the digest, so it never
// changes its meaning: another rule gets another name. docs/digest.md defines
// both for other languages.
type Algorithm string

const (
	// RawBytes is SHA-256 over the type and exactly the bytes. It is the
	// default: serialise once, keep the bytes, retry with them.
	RawBytes Algorithm = "sha256/raw/1"
	// StrictJSON is SHA-256 over the type and the bytes' canonical JSON (RFC
	// 8785), for those who cannot keep the bytes and serialise anew at a retry:
	// spaces, the order of names and the spelling of numbers and strings make no
	// difference. What canonical JSON would merge is refused with a
	// [*JSONError]: numbers that a double does not hold exactly, integers beyond
	// ±(2^53 − 1), a name twice in one object, text that is not UTF-8.
	StrictJSON Algorithm = "sha256/jcs-strict/1"
)

func (a Algorithm) orDefault() Algorithm {
	if a == "" {
		return RawBytes
	}
	return a
}

// Digest is what the receipt keeps of the content: SHA-256 over a framed
// preimage, so that no two different contents share one:
//
//	tag · uint64(len(Type)) Type · uint64(len(data)) data
//
// with lengths in big-endian order. With RawBytes, tag is
// "fenceline-content" 0x01 and data is Bytes; with StrictJSON, tag is
// "fenceline-content-json" 0x01 and data is the canonical form of Bytes. Neither
// the step nor the position is in it.
//
// Errors: a [*JSONError] if StrictJSON refuses the bytes, an [*InvalidError] if
// the algorithm is unknown.
func (c Content) Digest() ([sha256.Size]byte, error) {
	h := sha256.New()
	switch c.Algorithm.orDefault() {
	case RawBytes:
		h.Write([]byte("fenceline-content\x01"))
		frame(h, c.Type, c.Bytes)
	case StrictJSON:
		canonical, err := canonicalJSON(c.Bytes)
		if err != nil {
			return [sha256.Size]byte{}, err
		}
		h.Write([]byte("fenceline-content-json\x01"))
		frame(h, c.Type, canonical)
	default:
		return [sha256.Size]byte{}, &InvalidError{"algorithm", "is none of " + string(RawBytes) + " and " + string(StrictJSON)}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// sum is the algorithm's name and the digest of a content that validate has
// accepted.
func (c Content) sum() (algorithm string, digest []byte) {
	d, _ := c.Digest()
	return string(c.Algorithm.orDefault()), d[:]
}

func frame(h hash.Hash, contentType string, data []byte) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(contentType)))
	h.Write(n[:])
	h.Write([]byte(contentType))
	binary.BigEndian.PutUint64(n[:], uint64(len(data)))
	h.Write(n[:])
	h.Write(data)
}

// otherAlgorithm is the reason with which the database refuses to compare
// digests of two algorithms.
const otherAlgorithm = "algorithm"

// recheck answers a retry whose first attempt was made with another algorithm:
// by an older or newer version of the program, or another setting. The database
// cannot: it has two digests that say nothing about each other. Here are the
// bytes of the retry, so their digest under the first attempt's algorithm is
// computed and compared. Equal: replayed. Different: conflict. An algorithm
// that is not known here: unconfirmable, as the database said.
//
// That this happens outside of the transaction is sound: the evidence is of a
// receipt that has committed, whose algorithm and digest never change. So what
// is said about it stays true, whatever happens to fence and receipt since,
// and asking the database again with the other digest could only be told less.
func (c Content) recheck(err error) error {
	var r *RefusedError
	if !errors.As(err, &r) || r.Answer != ErrUnconfirmable || r.Evidence.Reason != otherAlgorithm {
		return err
	}
	first := Content{Type: c.Type, Bytes: c.Bytes, Algorithm: Algorithm(r.Evidence.Algorithm)}
	if first.Algorithm != RawBytes && first.Algorithm != StrictJSON {
		r.Evidence.Reason = "it was committed with the digest algorithm " + string(r.Evidence.Algorithm) + ", which this version does not know"
		return r
	}
	digest, failed := first.Digest()
	r.Evidence.Reason = ""
	r.Answer, r.Evidence.PresentedDigest = ErrConflict, digest[:]
	switch {
	case failed != nil:
		// The first attempt's bytes had a canonical form, these have none: they
		// are others.
		r.Evidence.PresentedDigest, r.Evidence.Reason = nil, failed.Error()
	case bytes.Equal(digest[:], r.Evidence.Digest):
		r.Answer = ErrReplayed
	}
	return r
}
