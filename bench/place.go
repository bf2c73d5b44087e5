package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// place is where one arm runs once: a topic and a database of its own.
type place struct {
	topic, dsn string
	pool       *pgxpool.Pool // for who sets up and asks, not for what is measured
	kafka      string        // its address
	leave      func()        // removes both
}

// place makes one for the n-th run of a section, with the tables that prepare
// makes. Leave it.
func (s *stack) place(ctx context.Context, section string, n int, prepare func(context.Context, *pgx.Conn) error) (_ *place, err error) {
	p := &place{topic: fmt.Sprintf("%s-%d", section, n), kafka: s.kafka.Addr()}
	database := fmt.Sprintf("%s_%d", section, n)
	if err := s.topic(ctx, p.topic, partitions); err != nil {
		return nil, err
	}
	p.leave = func() {
		if p.pool != nil {
			p.pool.Close()
		}
		s.dropDatabase(ctx, database)
		s.dropTopic(ctx, p.topic)
	}
	defer func() {
		if err != nil {
			p.leave()
		}
	}()
	if p.dsn, err = s.database(ctx, database); err != nil {
		return nil, err
	}
	if p.pool, err = pgxpool.New(ctx, p.dsn); err != nil {
		return nil, err
	}
	return p, p.do(ctx, prepare)
}

// do has something done over one connection.
func (p *place) do(ctx context.Context, what func(context.Context, *pgx.Conn) error) error {
	return p.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return what(ctx, c.Conn()) })
}

// job is what an arm is told that works here.
func (p *place) job() job { return job{dsn: p.dsn, kafka: p.kafka, topic: p.topic} }
