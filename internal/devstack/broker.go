package devstack

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Broker is an in-process broker that speaks Kafka's protocol. Its records live as long as it does.
type Broker struct {
	cluster *kfake.Cluster
	addr    string // kept, since a closed cluster doesn't answer when asked for it
}

// StartBroker starts a broker of one node on 127.0.0.1. Topics aren't created by being used: its caller creates them.
func StartBroker() (*Broker, error) {
	var err error
	for range 10 {
		var port int
		if port, err = FreePort(); err != nil {
			return nil, err
		}
		var cluster *kfake.Cluster
		if cluster, err = kfake.NewCluster(kfake.Ports(port)); err == nil {
			return &Broker{cluster: cluster, addr: cluster.ListenAddrs()[0]}, nil
		}
	}
	return nil, fmt.Errorf("devstack: start the in-process broker: %w", err)
}

// Addr is the broker's address, host:port.
func (b *Broker) Addr() string { return b.addr }

// Stop ends the broker; its records are gone.
func (b *Broker) Stop() { b.cluster.Close() }
