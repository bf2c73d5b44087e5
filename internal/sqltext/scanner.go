package sqltext

import "strings"

// scanner is what is left of a text of statements.
type scanner string

// next takes the next token off: a word in lower case, "'" for a text, '"' for a
// quoted name, one character of anything else. It is empty at the end.
func (s *scanner) next() string {
	s.space()
	rest := string(*s)
	if rest == "" {
		return ""
	}
	switch c := rest[0]; {
	case c == '\'' || c == '"': // a doubled one is two texts in a row: all the same here
		s.behind(1, string(c))
		return string(c)
	case c == '$':
		if tag := dollarTag(rest); tag != "" {
			s.behind(len(tag), tag)
			return "'"
		}
	case startsWord(c):
		n := 1
		for n < len(rest) && (startsWord(rest[n]) || rest[n] == '$' || rest[n] >= '0' && rest[n] <= '9') {
			n++
		}
		*s = scanner(rest[n:])
		if (rest[:n] == "e" || rest[:n] == "E") && strings.HasPrefix(rest[n:], "'") {
			s.escaped()
			return "'"
		}
		return strings.ToLower(rest[:n])
	}
	*s = scanner(rest[1:])
	return rest[:1]
}

// space takes spaces and comments off.
func (s *scanner) space() {
	for {
		rest := strings.TrimLeft(string(*s), " \t\r\n\f\v")
		*s = scanner(rest)
		switch {
		case strings.HasPrefix(rest, "--"):
			if end := strings.IndexAny(rest, "\r\n"); end >= 0 {
				*s = scanner(rest[end:])
			} else {
				*s = ""
			}
		case strings.HasPrefix(rest, "/*"):
			s.comment()
		default:
			return
		}
	}
}

// comment takes off a comment, and those in it.
func (s *scanner) comment() {
	rest, depth := string(*s)[2:], 1
	for rest != "" && depth > 0 {
		switch {
		case strings.HasPrefix(rest, "/*"):
			depth, rest = depth+1, rest[2:]
		case strings.HasPrefix(rest, "*/"):
			depth, rest = depth-1, rest[2:]
		default:
			rest = rest[1:]
		}
	}
	*s = scanner(rest)
}

// behind goes on to behind the next end, which is looked for from the nth byte on.
func (s *scanner) behind(n int, end string) {
	_, rest, _ := strings.Cut(string(*s)[n:], end)
	*s = scanner(rest)
}

// escaped takes off a text in which a backslash takes the next byte along.
func (s *scanner) escaped() {
	rest := string(*s)
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case '\'':
			if !strings.HasPrefix(rest[i+1:], "'") {
				*s = scanner(rest[i+1:])
				return
			}
			i++
		}
	}
	*s = ""
}

// dollarTag is $$ or $tag$ at the beginning of a text; empty for none, as in a
// parameter.
func dollarTag(s string) string {
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '$':
			return s[:i+1]
		case startsWord(c) || i > 1 && c >= '0' && c <= '9':
		default:
			return ""
		}
	}
	return ""
}

func startsWord(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= 0x80
}
