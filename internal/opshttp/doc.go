// Package opshttp serves what supervisors and monitoring ask of a program:
// /livez, /readyz and /metrics.
//
//   - /livez says that the program is not stuck: if it fails, a restart helps.
//     It asks nobody else.
//   - /readyz says that the program can do its work when it is its turn, with
//     the reasons if not, and with notes about what an operator should know in
//     either case. The readiness of a sidecar is that of its whole Pod, so a
//     program that stands by, or waits out an outage of Kafka, is ready.
//   - /metrics is in Prometheus' text format.
//
// It answers GET and HEAD, and nothing else. It has no passwords: bind it to
// loopback, or to a network in which everybody may read counts.
package opshttp
