// Package e2e tests the whole chain: a producer, the relay, Kafka and a
// consumer, each as its users run it. What one part promises alone is tested
// beside that part; here is what only holds because they agree.
package e2e
