package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

var errRollback = errors.New("rolled back")

// Who may do what, statement by statement: a consumer decides about records, an
// operator gives up and vouches, a monitor reads what is not said by records.
func TestEachRoleMayDoItsOwnPartAndNothingElse(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), ev(0, 1, 3))
	l.truncate(1, 2)
	roles := []string{"consumer", "operator", "monitor"}
	for sql, may := range map[string][3]bool{
		"update fenceline.guard set recheck = true":                                                                                  {true, true, false},
		"delete from fenceline.guard":                                                                                                {false, true, false},
		"select fenceline.forget_guards('c', 's', '', interval '1 hour', 10)":                                                        {true, true, false},
		"select fenceline.restart_partition('c', 's', 0, 1, false, null, null)":                                                      {true, false, false},
		"update fenceline.consumer_offset set next_offset = 9":                                                                       {true, true, false},
		"update fenceline.consumer_offset set truncated_at = null":                                                                   {false, true, false},
		"update fenceline.consumer_offset set truncated_from = null":                                                                 {false, true, false},
		"delete from fenceline.consumer_offset":                                                                                      {false, false, false},
		"insert into fenceline.consumer_stream (consumer, stream, policy, start) values ('c', 'z', 'state', 'origin')":               {true, false, false},
		"insert into fenceline.consumer_stream (consumer, stream, policy, start, forgotten) values ('c', 'z', 'state', 'origin', 1)": {false, false, false},
		"update fenceline.consumer_stream set forgotten = 0":                                                                         {false, true, false},
		"update fenceline.consumer_stream set policy = 'state'":                                                                      {false, false, false},
		"insert into fenceline.consumer_topic (consumer, topic, partitions) values ('c', 't', 1)":                                    {true, true, false},
		"update fenceline.consumer_topic set partitions = 2":                                                                         {false, true, false},
		"delete from fenceline.consumer_topic":                                                                                       {false, false, false},
		"update fenceline.dead set discarded_at = now()":                                                                             {false, true, false},
		"update fenceline.dead set erased_at = now(), value = null":                                                                  {false, true, false},
		"update fenceline.dead set retry = false":                                                                                    {true, true, false},
		"update fenceline.quarantine set resolved_at = now(), outcome = 'applied'":                                                   {true, true, false},
		"update fenceline.quarantine set value = null":                                                                               {false, true, false},
		"update fenceline.quarantine set erased_at = now()":                                                                          {false, true, false},
		"delete from fenceline.quarantine":                                                                                           {false, true, false},
		"insert into fenceline.consumer_audit (consumer, action, who, reason) values ('c', 'x', 'w', 'y')":                           {false, true, false},
		"insert into fenceline.consumer_audit (consumer, action, reason, at) values ('c', 'x', 'y', now())":                          {false, false, false},
		"insert into fenceline.consumer_audit (consumer, action, reason, actor) values ('c', 'x', 'y', 'me')":                        {false, false, false},
		"update fenceline.consumer_audit set reason = 'z'":                                                                           {false, false, false},
		"delete from fenceline.consumer_audit":                                                                                       {false, false, false},
		"select value from fenceline.quarantine":                                                                                     {true, true, false},
		"select error from fenceline.quarantine":                                                                                     {true, true, false},
		"select error from fenceline.dead":                                                                                           {true, true, false},
		"select value from fenceline.parked":                                                                                         {true, true, false},
		"select size, erased_at from fenceline.parked":                                                                               {true, true, true},
		"select size, retry, forwarded_at, erased_at from fenceline.dead":                                                            {true, true, true},
		"select attempts, retry, resolved_at, outcome from fenceline.quarantine":                                                     {true, true, true},
		"select partitions from fenceline.consumer_topic":                                                                            {true, true, true},
		"select unstored, recheck, parked_rows from fenceline.guard":                                                                 {true, true, true},
		"truncate fenceline.guard":                                                                                                   {false, false, false},
	} {
		for i, role := range roles {
			err := pgx.BeginFunc(context.Background(), l.admin, func(tx pgx.Tx) error {
				if _, err := tx.Exec(context.Background(), "set local role fenceline_"+role); err != nil {
					return err
				}
				if _, err := tx.Exec(context.Background(), sql); err != nil {
					return err
				}
				return errRollback
			})
			switch {
			case may[i] && !errors.Is(err, errRollback):
				t.Errorf("%s: %s: %v", role, sql, err)
			case !may[i]:
				denied(t, role+": "+sql, err)
			}
		}
	}
	// Nobody else may call the functions.
	_, err := l.role("producer").Exec(context.Background(), "select fenceline.forget_guards('c', 's', '', interval '1 hour', 10)")
	denied(t, "producer", err)
}
