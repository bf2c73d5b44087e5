package migrations

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

// storeFork stores that the topic t is refused since a time that the relay tells, as
// the relay does, and gives since when the database has it.
func (b *bundle) storeFork(since string) string {
	b.exec(`do $$ declare e bigint; n bigint; begin
		select epoch, token into e, n from @schema@.lease where key = 'fenceline:relay/00';
		perform @schema@.relay_checkpoint(array['fenceline:relay/00'], array[e], array[n], '[]',
			jsonb_build_array(jsonb_build_object('topic', 't', 'partition', null, 'shards', array[0], 's1', '5:5:', 'low', 1, 'last_pos', 0, 'reason', 'r', 'detail', '', 'since', ` + since + `)), '[]', '{}', true);
	end $$`)
	return b.one(`select since::text from @schema@.relay_fork where topic = 't'`)
}

// A topic that has another partition count is not accepted once a tombstone was swept
// behind its refusal: by one clock, whatever the relay's goes by.
func TestSinceWhenATopicIsRefusedIsToldByTheClockThatTellsWhenATombstoneWasSwept(t *testing.T) {
	for name, since := range map[string]string{"a relay's clock that is ahead": "now() + interval '1 h'", "one that is behind": "now() - interval '1 h'"} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.shards(t)
			b.exec(`select @schema@.relay_acquire('fenceline:relay/00', 'r', interval '1 h', null, interval '1 s')`)
			b.exec(`select @schema@.relay_topic_pin('t', 2)`)
			b.exec(`update @schema@.retention set tombstone_at = clock_timestamp()`)
			was := b.storeFork(since)
			equal(t, b.one(`select (since between clock_timestamp() - interval '10 min' and clock_timestamp())::text from @schema@.relay_fork`), "true")
			equal(t, b.storeFork(since), was) // it is stored again whenever it has come on
			accept := `select @schema@.relay_topic_accept('t', 3, true, 'me', '')`
			b.exec(accept) // what was swept before is no reason
			b.exec(`update @schema@.retention set tombstone_at = clock_timestamp()`)
			_, err := b.admin.Exec(context.Background(), schema.Expand(strings.Replace(accept, "3", "4", 1), b.schema))
			contains(t, err, "a tombstone was swept")
		})
	}
}

var errDecided = errors.New("decided")

func TestWhatIsDecidedAboutATopicIsOnTheDiskBeforeAnybodyActsUponIt(t *testing.T) {
	ctx := context.Background()
	b := setup(t)
	b.shards(t)
	b.exec(`insert into @schema@.relay_topic (topic, partitions) values ('pinned', 2)`)
	b.exec(`insert into @schema@.relay_topic (topic, partitions, retired_at) values ('retired', 2, now())`)
	b.exec(`insert into @schema@.relay_fork (topic, s1, low, reason, detail) values ('gone', '5:5:', 1, '', '')`)
	for _, decision := range []string{
		`relay_topic_pin('new', 3)`,
		`relay_topic_retire('gone', 'me', '')`,
		`relay_topic_judge('retired', '{1}')`,
		`relay_topic_accept('pinned', 3, true, 'me', '')`,
		`relay_set_pause(true, 'me', '')`,
		`set_owner('k', null, 'me')`,
		`history_on_new('bump', 'me')`,
	} {
		for was, want := range map[string]string{"off": "on", "local": "on", "remote_apply": "remote_apply"} {
			err := pgx.BeginFunc(ctx, b.admin, func(tx pgx.Tx) error {
				var is string
				if _, err := tx.Exec(ctx, "set local synchronous_commit = "+was); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, schema.Expand("select @schema@."+decision, b.schema)); err != nil {
					return err
				}
				if err := tx.QueryRow(ctx, "select current_setting('synchronous_commit')").Scan(&is); err != nil {
					return err
				}
				if is != want {
					t.Errorf("%s: with %s it is committed with %s, want %s", decision, was, is, want)
				}
				return errDecided // so that the next one decides, too
			})
			if !errors.Is(err, errDecided) {
				t.Fatal(err)
			}
		}
	}
}
