// Package apachekafka runs a real Apache Kafka in KRaft mode, one node or a [Cluster] of several, for the life of this
// process.
//
// It needs Java 17 or newer and Maven: the jars are fetched by Maven once into devstack's cache, from the pom.xml in
// this folder. The first run also makes an archive of the loaded classes there, which halves every later start (one
// second instead of two on an idle machine).
//
// Kafka counts as ready when it has answered what a client's first calls need: metadata with one live broker, a group
// coordinator (which creates the offsets topic) and a producer id. A port that accepts connections proves less, and a
// consumer that comes before the coordinator waits five seconds before it asks again.
//
// The node listens on 127.0.0.1 only. It keeps its data over [Broker.Kill] and [Broker.Restart], and it ends, with
// its data, when this process dies in whatever way.
package apachekafka
