package verify

import (
	"fmt"
	"strings"
)

// Kind says what disagrees.
type Kind string

const (
	// Lost: the relay's cursor has passed an event that is not in its topic.
	Lost Kind = "lost"
	// Hole: a topic goes on behind a position that is not in it.
	Hole Kind = "hole"
	// Order: the first copy of a record lies behind a later one of its stream.
	Order Kind = "order"
	// Token: the fencing token falls while seq rises.
	Token Kind = "token"
	// Content: two records, or a record and the outbox's row, have the same
	// position and are not the same.
	Content Kind = "content"
	// Misplaced: a record lies in a partition that its key doesn't belong to.
	Misplaced Kind = "misplaced"
	// Unreadable: a record carries not what docs/wire.md asks for.
	Unreadable Kind = "unreadable"
	// NoTopic: events were appended to a topic that does not exist, or it is one of
	// Config.Topics or a consumer's.
	NoTopic Kind = "no-topic"
	// Gap: the outbox itself has a hole, or a position twice, or a life that
	// doesn't begin where the one before ended.
	Gap Kind = "gap"
	// NoReceipt: an event whose commit left no receipt, though it is too young
	// for its receipt to be swept.
	NoReceipt Kind = "no-receipt"
	// Ahead: an event with a position above what its key's fence has issued.
	Ahead Kind = "ahead"
	// Head: the remembered last position of a stream is not that of its last row.
	Head Kind = "head"
	// Phantom: a record or a guard stands on a position that the outbox doesn't
	// know, as happens after a restore: the lost side had committed it.
	Phantom Kind = "phantom"
	// Unfollowed: after a new history began, nothing was appended to a stream
	// of which a consumer has seen the old one. It can't see by itself whether
	// what it has is still true.
	Unfollowed Kind = "unfollowed"
	// Unapplied: a consumer has read past a record, and neither does its guard
	// cover it nor is it kept aside.
	Unapplied Kind = "unapplied"
)

var remedies = map[Kind]string{
	Lost:       "publish it again: relay republish",
	Hole:       "publish what is missing again: relay republish",
	Order:      "consumers park what came early and go on by themselves; behind a republish of what was missing this is as it should be, else look for what else writes to this topic",
	Token:      "something wrote around the gate, or two histories share a topic: relay history show",
	Content:    "something else writes to this topic or to the outbox's table; compare the two, and adopt or discard at the consumers",
	Misplaced:  "something else writes to this topic, or its partition count was changed and not accepted: relay topic accept",
	Unreadable: "something else writes to this topic; consumers have it in quarantine",
	NoTopic:    "check the name, if it was given; else create the topic, or, if its events are given up, retire it: relay topic retire",
	Gap:        "somebody has deleted or inserted rows by hand; restore them, or give the positions up with a skip",
	NoReceipt:  "somebody has deleted receipts, or has inserted into the outbox by hand",
	Ahead:      "the fence was restored without the outbox, or rows were inserted by hand: relay history bump --above",
	Head:       "somebody has changed outbox or head by hand",
	Phantom:    "the effect downstream is of a commit that this database has lost: decide per key, then append the truth, and adopt it at the consumers",
	Unfollowed: "append the stream's present state, so that consumers see it in the new history",
	Unapplied:  "its consumer's database was restored, or its guard was changed by hand: set the group's offsets back, which applies nothing twice; of a consumer that began at the end of its topics (consumer.Latest) what was published before it is as it should be",
}

// Remedy says what to do about findings of this kind.
func (k Kind) Remedy() string { return remedies[k] }

// Kinds are all kinds, in the order in which reports list them.
func Kinds() []Kind {
	return []Kind{Lost, Hole, Order, Token, Content, Misplaced, Unreadable, NoTopic, Gap, NoReceipt, Ahead, Head, Phantom, Unfollowed, Unapplied}
}

// Finding is one disagreement.
type Finding struct {
	Kind Kind `json:"kind"`
	// Stream and Key name the stream; Stream is empty where it can't be known.
	Stream string `json:"stream,omitempty"`
	Key    string `json:"key,omitempty"`
	// Epoch, Token and Seq are the position that it is about; zero where there
	// is none.
	Epoch int64 `json:"epoch,omitempty"`
	Token int64 `json:"token,omitempty"`
	Seq   int64 `json:"seq,omitempty"`
	// Consumer is set on what one consumer says.
	Consumer string `json:"consumer,omitempty"`
	// Where is the place: topic/partition@offset, or the outbox's pos.
	Where string `json:"where,omitempty"`
	// Detail says in words what disagrees with what.
	Detail string `json:"detail"`
}

// String is the finding on one line.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", f.Kind)
	if f.Consumer != "" {
		fmt.Fprintf(&b, " consumer=%s", f.Consumer)
	}
	if f.Stream != "" {
		fmt.Fprintf(&b, " stream=%s", f.Stream)
	}
	if f.Key != "" {
		fmt.Fprintf(&b, " key=%q", f.Key)
	}
	if f.Epoch != 0 {
		fmt.Fprintf(&b, " epoch=%d token=%d seq=%d", f.Epoch, f.Token, f.Seq)
	}
	if f.Where != "" {
		fmt.Fprintf(&b, " at %s", f.Where)
	}
	fmt.Fprintf(&b, ": %s", f.Detail)
	return b.String()
}

// Report is what was compared and how much of it disagrees.
type Report struct {
	// Streams, Events, Records and Guards were read: streams of the outbox, its
	// rows, the records in Kafka, the consumers' guards.
	Streams int64 `json:"streams"`
	Events  int64 `json:"events"`
	Records int64 `json:"records"`
	Guards  int64 `json:"guards"`
	// Copies are the records that are in their topic a second time, which at
	// least once allows.
	Copies int64 `json:"copies"`
	// Waiting are committed events that the relay has not passed yet, Held those
	// of streams that it holds.
	Waiting int64 `json:"waiting"`
	Held    int64 `json:"held"`
	// Foreign are records of others, in topics that a consumer reads and the outbox
	// has nothing to do with: nothing is said of them. They are among Records.
	Foreign int64 `json:"foreign"`
	// Uncovered are positions of which nothing can be said, because the other
	// side of the comparison is past its retention.
	Uncovered int64 `json:"uncovered"`
	// Found counts the findings, by kind.
	Found map[Kind]int64 `json:"found"`
}

// Total is the number of findings.
func (r *Report) Total() int64 {
	var n int64
	for _, c := range r.Found {
		n += c
	}
	return n
}
