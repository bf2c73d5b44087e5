package sqltext

import "strings"

// ChangesSettings says that one of the statements in sql may change what those
// behind it in the transaction run under: search path, role, durability, a
// tenant. What a function or a view does that is named in it can't be seen.
func ChangesSettings(sql string) bool { return look(sql).changes }

func changesSettings(sql string) bool {
	lower := strings.ToLower(sql)
	// Wherever it stands, as a quoted name too; and U&"…" can spell any name.
	for _, piece := range []string{"set_config", "pg_settings", `u&"`} {
		if strings.Contains(lower, piece) {
			return true
		}
	}
	s := scanner(sql)
	for first := true; ; {
		switch token := s.next(); token {
		case "":
			return false
		case ";":
			first = true
		case "(":
		default:
			if first {
				switch token {
				case "set", "reset", "discard", "load", "do", "call", "listen", "lock", "savepoint":
					return true
				}
			}
			first = false
		}
	}
}
