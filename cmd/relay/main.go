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
	}
}
