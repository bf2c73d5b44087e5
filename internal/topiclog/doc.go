// Package topiclog lets a comparison of all parts read Kafka: it stands between
// packages verify and kafkasource, which don't know each other.
package topiclog
