package sqltext_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/internal/sqltext"
)

func TestAStatementThatEndsTheTransactionIsToldFromOneThatDoesNot(t *testing.T) {
	for sql, want := range map[string]bool{
		"": false, ";": false, "--": false, "/*": false, "select 1": false, "endow": false, "committed": false, "end_all()": false, "select $1": false,
		"savepoint s": false, "release s": false, "rollback to s": false, "ROLLBACK WORK TO SAVEPOINT s": false, "rollback transaction to s": false,
		"prepare x as select 1": false, "insert into commit values (1)": false, "set transaction read only": false, "select 1; select 2": false,
		"commit": true, "  Commit;": true, "; commit": true, "END": true, "abort": true, "begin": true, "start transaction": true,
		"rollback": true, "rollback;": true, "rollback transaction": true, "rollback and chain": true, "rollback prepared 'x'": true,
		"prepare transaction 'x'": true, "/* a */ -- b\ncommit prepared 'x'": true, "commit and chain": true,
		"commit; begin": true, "begin; commit": true, "select 1; commit": true, "select 1; rollback to s; rollback": true,
		"/* a /* b */ commit */ select 1": false, "/* a /* b */ */ commit": true, "-- a; commit": false, "-- a\rcommit": true,
		"select '; commit'": false, "select 'it''s; commit'; select 1": false, "select 'a'; commit": true, `select 'a\'; commit`: true,
		`select e'a\'; commit'`: false, `select E'a\\'; commit`: true, `select e'a''; commit'`: false, `select E'a''b'; commit`: true,
		`select 1 as "; commit"`: false, `select 1 as "a""b"; commit`: true,
		"select $$; commit$$": false, "select $a$; $$ commit; $b$ $a$; select 1": false, "select $a$ $a$; commit": true, "select $1; commit": true,
		"do $$ begin perform 1; end $$": false, "do $$ begin perform 1; end $$; commit": true, "select a$b$; commit": true,
		"create function f() returns int begin atomic select 1; select 2; end": false, "create procedure begin() language sql as 'select 1'; commit": true,
	} {
		if got := sqltext.EndsTransaction(sql); got != want {
			t.Errorf("%q: %t, want %t", sql, got, want)
		}
	}
}

func TestATextWithoutAStatementIsEmpty(t *testing.T) {
	for sql, want := range map[string]bool{
		"": true, " \t\r\n\f\v": true, ";": true, " ; ;": true, "-- select 1": true, "/* select 1 */ ; -- x": true, "/*": true,
		"select 1": false, "; select 1": false, "-- x\nselect 1": false, "'": false, "$1": false,
	} {
		if got := sqltext.Empty(sql); got != want {
			t.Errorf("%q: %t, want %t", sql, got, want)
		}
	}
}

// More texts than are remembered, in turn.
func TestWhatIsSaidOfATextDoesNotDependOnWhatWasReadBefore(t *testing.T) {
	for round := range 3 {
		for i := range 2000 {
			pad := strings.Repeat(" ", i%3*3000)
			for sql, want := range map[string][3]bool{
				fmt.Sprintf("select %d%s", i, pad):                {false, false, false},
				fmt.Sprintf("%scommit; select %d", pad, i):        {true, false, false},
				fmt.Sprintf("set local x = %d%s", i, pad):         {false, true, false},
				fmt.Sprintf("-- %d%s", i, pad):                    {false, false, true},
				fmt.Sprintf("set x = %d; commit; select 1", i%10): {true, true, false},
			} {
				if got := [3]bool{sqltext.EndsTransaction(sql), sqltext.ChangesSettings(sql), sqltext.Empty(sql)}; got != want {
					t.Fatalf("round %d, %.40q: %v, want %v", round, sql, got, want)
				}
			}
		}
	}
}

func FuzzNoTextIsReadForever(f *testing.F) {
	for _, sql := range []string{"e'\\", "$a$", "/*/", "\"", "'", "create begin atomic", "\xff", "$"} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if sqltext.Empty(sql) && sqltext.EndsTransaction(sql) {
			t.Errorf("%q is empty and ends the transaction", sql)
		}
	})
}

func TestAStatementThatMayChangeSettingsIsToldFromOneThatDoesNot(t *testing.T) {
	for sql, want := range map[string]bool{
		"": false, "select 1": false, "insert into settings values (1)": false, "update t set a = 1": false, "select 'set local x = 1'": false,
		"-- set local x\nselect 1": false, "/* ; set local x = 1 */ select 1": false, "offset": false, "setting": false, "values (1)": false,
		"set local x = 1": true, " /* a */ -- b\n SET x = 1": true, "(set": true, "reset all": true, "discard all": true, "load 'x'": true, "do $$ begin end $$": true,
		"call p()": true, "listen x": true, "lock table t": true, "savepoint s": true, "set/**/role x": true, "set": true,
		"select set_config('a', 'b', true)": true, `select "set_config"('a', 'b', true)`: true, `select U&"\0073et_config"('a', 'b', true)`: true,
		"update pg_settings set setting = 'x' where name = 'y'": true, "prepare p as select set_config('a', 'b', true)": true,
		"select 1; set local x = 1": true, "/* a /* b */ */ set local x = 1": true, "select $$;$$; set x = 1": true, "select '; set x = 1'": false,
	} {
		if got := sqltext.ChangesSettings(sql); got != want {
			t.Errorf("%q: %t, want %t", sql, got, want)
		}
	}
}
