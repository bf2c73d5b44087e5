// Relay carries committed events from the outbox to Kafka, and keeps the
// schema.
//
//	relay run            carry events until told to stop
//	relay migrate …      create, change, inspect or remove the schema
//	relay status         what the relay has to do, and what keeps it from it
//	relay doctor         examine what a relay rests on, each finding with its remedy
//	relay pause|resume   keep all relays from publishing, let them go on
//	relay retention      one pass of the outbox's retention
//	relay probe …        ask a running relay whether it is well
//	relay protect …      make a table refuse writes outside the gate; unprotect, protected
//	relay inbox …        what a consumer could not apply: list, show, decide
//	relay version
//
// Each setting is a flag and an environment variable; "relay <command> -help"
// prints them. It exits with 0 when it was stopped or is done, 1 when the work
// could not be done, 2 when the command line or the environment is wrong.
package main
