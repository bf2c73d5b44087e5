// Package kafkasource reads Kafka for package consumer, with kafka-go.
//
// It is a thin adapter, and the only part of the consumer that knows kafka-go.
// Of that library it takes the consumer group (one generation at a time), the
// transport (leaders, connections, TLS, SASL) and the codecs. It does not take
// its Reader, nor its decoding of fetches: the comments at generation and
// fetchRequest say why.
//
// What it promises on top:
//
//   - Control records, and records of aborted transactions, never reach a
//     handler, and never hold a partition up.
//   - An offset that the log does not have is a *consumer.OffsetError with the
//     log's bounds, never a silent jump.
//   - A batch that can't be read (checksum, codec, format, size) is a
//     *consumer.BatchError, never a gap.
//   - A batch takes at most Config.MaxBatchBytes of memory, whatever it claims.
//   - A topic that is missing or compacted, and a number of partitions that
//     changed, are refused with the remedy.
//   - Offsets are committed in the generation that they belong to, also while it
//     is ending.
package kafkasource
