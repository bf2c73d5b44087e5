// Package kafkasec turns settings into what a Kafka client needs to encrypt its
// connections and to say who it is: TLS with the system's or one's own
// authorities and with or without a client certificate, and SASL by PLAIN,
// SCRAM-SHA-256 or SCRAM-SHA-512.
//
// A password is a [Secret], and the mechanism that [Config.Open] makes of it
// prints as its name: neither shows in a log, an error or a dump of whatever
// struct it is part of.
//
// PLAIN sends the password itself, so it is refused without TLS.
package kafkasec
