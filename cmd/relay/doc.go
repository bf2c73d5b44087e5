// Relay carries committed events from the outbox to Kafka, and keeps the
// schema.
//
//	relay run            carry events until told to stop
//	relay migrate …      create, change, inspect or remove the schema
//	relay status         what the relay has to do, and what keeps it from it
//	relay doctor         examine what a relay rests on, each finding with its remedy
//	relay probe …        ask a running relay whether it is well
//	relay pause|resume   keep all relays from publishing, let them go on
//	relay held …         streams of which the broker refuses a record: list, show, retry, skip
//	relay topic …        topics that are refused or gone: list, retire, accept
//	relay republish      publish events once more
//	relay retention      one pass of the outbox's retention
//	relay sweep          remove receipts, tombstones and turns that nobody can ask for any more
//	relay verify         compare outbox, receipts, topics and guards
//	relay lease …        who holds which key: list, show, expire, own
//	relay history …      a database that was restored, promoted or copied: show, bump, confirm, policy
//	relay protect …      make a table refuse writes outside the gate; unprotect, protected
//	relay inbox …        what a consumer could not apply: list, show, decide
//	relay version
//
// What describes an installation is a flag and an environment variable, what one
// call is about a flag alone; "relay <command> -help" prints them. It exits with 0
// when the work is done, or when it was told to stop and runs until then, with 1
// when the work could not be done or was interrupted, and with 2 when the command
// line or the environment is wrong.
package main
