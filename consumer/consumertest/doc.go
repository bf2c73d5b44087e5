// Package consumertest tests a consumer's handler as it will run: with the
// guard, the retries and the parks of [consumer.Run], in a real database, and
// without Kafka.
//
//	bench := consumertest.Run(t, pool, consumer.Config{}, handler)
//	quakes := consumertest.NewStream("quakes", "ci")
//	first, second, third := quakes.Event("quake.reported", a), quakes.Event("quake.reported", b), quakes.Event("quake.reported", c)
//
//	bench.Deliver(first, third, first).Want(consumer.Applied, consumer.Parked, consumer.Duplicate)
//	bench.Deliver(second).Want(consumer.Applied).WantResumed(third)
//
// A [Stream] makes records as the relay publishes them; what is delivered, in
// which order and how often, is the test's choice. Storm chooses at random.
//
// The pool's database needs the consumer's part of the schema, as package
// migrations and "relay migrate up -part consumer" put it there. Use a database
// for each test, or a consumer name.
package consumertest
