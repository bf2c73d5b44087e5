package main

import (
	"os"

	"github.com/fenceline/fenceline/internal/config"
)

func main() {
	os.Exit(config.Main("relay", "Relay carries committed events from the outbox in PostgreSQL to Kafka.", commands(), os.Args[1:], os.Stdout, os.Stderr))
}

func commands() []config.Command {
	return []config.Command{
		{Name: "run", Summary: "carry events until told to stop", Run: run},
		{Name: "migrate up", Summary: "create or change the schema", Run: migrateUp},
		{Name: "migrate down", Summary: "undo migrations", Run: migrateDown},
		{Name: "migrate status", Summary: "list migrations and where the schema is", Run: migrateStatus},
		{Name: "migrate print", Summary: "print a migration's SQL for review or other tools", Run: migratePrint},
		{Name: "migrate", Summary: "list the migrate commands", Run: migrateHelp},
		{Name: "status", Summary: "print what the relay has to do, and what keeps it from it", Run: status},
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
	}
}
