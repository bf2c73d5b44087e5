//go:build !unix

package main

import (
	"errors"
	"runtime"
)

var errNoSignals = errors.New("the story pauses and kills processes, for which it needs Linux or macOS; this is " + runtime.GOOS +
	". \"demo produce\", relay and demo-consumer run here, against PostgreSQL and Kafka of your own")

func canPause() error { return errNoSignals }

func (ch *child) pause() error  { return errNoSignals }
func (ch *child) resume() error { return errNoSignals }
func (ch *child) crash()        {}
