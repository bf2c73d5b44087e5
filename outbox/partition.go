package outbox

import "encoding/binary"

// Shards is the number of parts into which the relay's work is split by key.
// It is fixed at install: a row's shard is stored when it is appended.
const Shards = 64

// Shard is the shard of a key, the one that the database stores with each row.
func Shard(key string) int { return Partition([]byte(key), Shards) }

// Partition is the partition that Java's default partitioner, and so most of
// the Kafka world, chooses for a key.
func Partition(key []byte, partitions int) int {
	return int(Murmur2(key)&0x7fffffff) % partitions
}

// Murmur2 is the 32-bit MurmurHash2 with the seed that Kafka's clients use
// (org.apache.kafka.common.utils.Utils.murmur2).
func Murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data)
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
