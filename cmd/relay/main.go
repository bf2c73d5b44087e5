package main

import (
	"os"

	"github.com/fenceline/fenceline/internal/config"
)

func main() {
	os.Exit(config.Main("relay", "Relay carries committed events from the outbox in PostgreSQL to Kafka.", commands(), os.Args[1:], os.Stdout, os.Stderr))
}

func commands() []config.Command {
	return append([]config.Command{
		{Name: "run", Summary: "carry events until told to stop", Run: run},
		{Name: "migrate up", Summary: "create or change the schema", Run: migrateUp},
		{Name: "migrate down", Summary: "undo migrations", Run: migrateDown},
		{Name: "migrate status", Summary: "list migrations and where the schema is", Run: migrateStatus},
		{Name: "migrate print", Summary: "print a migration's SQL for review or other tools", Run: migratePrint},
		{Name: "migrate", Summary: "list the migrate commands", Run: migrateHelp},
		{Name: "doctor", Summary: "examine what a relay rests on, each finding with its remedy", Run: doctor},
		{Name: "pause", Summary: "keep all relays from publishing", Run: pause},
		{Name: "resume", Summary: "let them publish again", Run: resume},
		{Name: "retention", Summary: "begin the outbox's next partition and remove old ones, if it is time", Run: retention},
		{Name: "probe livez", Summary: "ask a relay on this machine whether it is stuck", Run: probeLive},
		{Name: "probe readyz", Summary: "ask a relay on this machine whether it is ready", Run: probeReady},
		{Name: "probe", Summary: "list the probe commands", Run: probeHelp},
		{Name: "status", Summary: "print what the relay has to do, and what keeps it from it", Run: status},
		{Name: "held list", Summary: "list the streams that are held, and why", Run: heldList},
		{Name: "held show", Summary: "show a held stream and what was decided about it", Run: heldShow},
		{Name: "held retry", Summary: "publish a held stream again", Run: heldRetry},
		{Name: "held skip", Summary: "give up the record at which a stream is held", Run: heldSkip},
		{Name: "held", Summary: "list the held commands", Run: heldHelp},
		{Name: "topic list", Summary: "list the topics, and which are refused or retired", Run: topicList},
		{Name: "topic retire", Summary: "give up a topic that is gone", Run: topicRetire},
		{Name: "topic accept", Summary: "accept a topic's new partition count", Run: topicAccept},
		{Name: "topic", Summary: "list the topic commands", Run: topicHelp},
		{Name: "republish", Summary: "publish events once more", Run: republish},
		{Name: "protect", Summary: "make a table refuse writes outside the gate", Run: protect},
		{Name: "unprotect", Summary: "take the protection off a table", Run: unprotect},
		{Name: "protected", Summary: "list the protected tables and what is open of them", Run: protected},
		{Name: "sweep", Summary: "remove receipts, tombstones and turns that nobody can ask for any more", Run: sweep},
		{Name: "verify", Summary: "compare outbox, receipts, topics and guards, and list every disagreement", Run: verifyAll},
		{Name: "lease list", Summary: "list who holds which key", Run: leaseList},
		{Name: "lease show", Summary: "show who holds a key and who did", Run: leaseShow},
		{Name: "lease expire", Summary: "end a lease now", Run: leaseExpire},
		{Name: "lease own", Summary: "assign a key to a login", Run: leaseOwn},
		{Name: "lease", Summary: "list the lease commands", Run: leaseHelp},
		{Name: "history show", Summary: "show whether the database was restored, promoted or copied", Run: historyShow},
		{Name: "history bump", Summary: "begin a new history, when something may have been lost", Run: historyBump},
		{Name: "history confirm", Summary: "say that nothing was lost", Run: historyConfirm},
		{Name: "history policy", Summary: "set what a new history does by itself", Run: historyPolicy},
		{Name: "history", Summary: "list the history commands", Run: historyHelp},
	}, inboxCommands()...)
}
