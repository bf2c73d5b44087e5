// Package maven fetches the jars of servers that tests run: what a pom.xml names,
// from wherever the Maven of this machine is told to look.
package maven
