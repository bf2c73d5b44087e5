package migrations

import (
	"context"
	"testing"
)

func TestTheProtectionDoesNotGoAwayUnderTablesThatRelyOnIt(t *testing.T) {
	b := setup(t)
	m := b.migrator(embedded)
	b.up(m, UpOptions{})
	b.exec(`create schema app_@schema_name@; create table app_@schema_name@.result (key text); select @schema@.protect('app_@schema_name@.result', 'key')`)
	for _, force := range []bool{false, true} { // force is about rows
		_, err := m.Down(context.Background(), DownOptions{Part: Producer, Force: force})
		contains(t, err, "tables are protected: app_"+b.schema+".result")
	}
	// What came after it is gone, and nothing else.
	equal(t, b.one(`select max(version)::text from @schema@.schema_version where part = 'producer'`), "2")
	b.exec(`select @schema@.unprotect('app_@schema_name@.result')`)
	equal(t, names(b.down(m, DownOptions{Part: Producer})), "producer/002_protect down, producer/001_init down")
}
