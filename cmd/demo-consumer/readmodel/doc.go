// Package readmodel is a downstream service's own data: how many earthquake
// reports each seismic network has made, its largest magnitude and its last
// update. It knows nothing of Kafka, offsets or duplicates: that it may count
// with "reports + 1" is what the guard in front of it is for.
package readmodel
