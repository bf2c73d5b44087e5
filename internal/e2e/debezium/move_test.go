//go:build debezium

package debezium

import "testing"

// The steps of docs/debezium.md, both ways, under a producer and a consumer that
// know nothing of it.
func TestMovingFromDebeziumToTheRelayAndBackLosesAndInvertsNothing(t *testing.T) {
	s := newStand(t, 2)
	s.consume()
	stop := s.write(3)
	connector := s.connect()
	s.more(60)
	s.settled()

	// To the relay: it begins, the connector ends, and with it its slot.
	end := s.relay()
	s.more(60)
	s.ok(connector.Pause(t.Context()))
	s.ok(connector.Forget(t.Context()))
	s.until("1", "select count(pg_drop_replication_slot(slot_name))::text from pg_replication_slots where slot_name = $1 and not active", slot)
	s.more(60)
	s.settled()

	// And back: the connector begins anew, and the relay ends when its slot
	// is there.
	s.ok(connector.Resume(t.Context()))
	s.until("true", "select coalesce(bool_or(active and confirmed_flush_lsn is not null), false)::text from pg_replication_slots where slot_name = $1", slot)
	s.more(60)
	end()
	s.more(60)
	stop()
	s.same()
	s.inOrder()
}

// Without a snapshot: the slot is made first, the relay goes on until all that was
// committed before is published, and the connector takes what came since.
func TestMovingToDebeziumWithoutASnapshotLosesAndInvertsNothing(t *testing.T) {
	s := newStand(t, 2)
	s.consume()
	stop := s.write(2)
	end := s.relay()
	s.more(60)
	s.exec("select pg_create_logical_replication_slot('" + slot + "', 'pgoutput')")
	s.more(60)
	s.connect("snapshot.mode=no_data")
	s.settled()
	end()
	s.more(60)
	stop()
	s.same()
	s.inOrder()
}
