package apachekafka

// PID is the process id of Kafka's Java, 0 while none runs.
func (b *Broker) PID() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process == nil {
		return 0
	}
	return b.process.PID()
}
