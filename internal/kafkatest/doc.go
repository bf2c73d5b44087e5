// Package kafkatest gives tests a broker that speaks Kafka's protocol.
//
// [Broker] is the broker that the tests of a test binary share. FENCELINE_TEST_KAFKA says which kind: "kfake" (the
// default), an in-process broker that starts in no time, or "apache", a real Apache Kafka; FENCELINE_TEST_KAFKA_ADDR
// names a running one to use, else one is started. The same tests run against both, so a test must not depend on which
// it gets:
//
//	addr := kafkatest.Broker(t)
//	topic := kafkatest.Topic(t, addr, 4, "cleanup.policy=compact")
//	…
//	records := kafkatest.Records(t, addr, topic)
//
// Topics have names of their own and are deleted after the test. Groups and transactional ids are shared by all: use
// [Name] to make one.
//
// Faults come in two kinds. [Proxy] stands between a client and any broker and loses answers, cuts connections or
// shuts the broker off, at a request that the test chooses: use it wherever it will do, since it shows the same thing
// on real Kafka. [Kfake] is an in-process cluster whose answers the test can choose (kfake's Fault and Control); a test
// that needs it is skipped in runs against Apache Kafka, and [Apache] is a node of its own that can be killed and
// restarted, skipped in runs against kfake.
package kafkatest
