// Demo-consumer is a downstream service, and the tutorial for writing one. It
// keeps a read model, the reports of each seismic network, in tables of its
// own, and lets fenceline's consumer guard them.
//
//	demo-consumer migrate   create the guard's tables and its own
//	demo-consumer run       apply events until told to stop
//	demo-consumer report    print the read model
//
// Read it in this order: the package readmodel beside this file is the service
// without any thought of Kafka; run.go joins the two; metrics.go and http.go are
// how it is watched: while it runs it answers GET requests for /livez, /readyz
// and /metrics, and for /reports with the read model as JSON, on the loopback
// address unless told otherwise.
package main
