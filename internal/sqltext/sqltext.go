package sqltext

// EndsTransaction says that one of the statements in sql begins or ends a
// transaction. Savepoints don't.
func EndsTransaction(sql string) bool { return look(sql).ends }

func endsTransaction(sql string) bool {
	s := scanner(sql)
	var head [3]string // how the statement begins
	n, last := 0, ""
	for {
		token := s.next()
		switch {
		case token == "" || token == ";":
			if ends(head) {
				return true
			}
			if token == "" {
				return false
			}
			head, n = [3]string{}, 0
		case token == "atomic" && last == "begin" && head[0] == "create":
			// The body of a function, whose semicolons separate nothing. Where it
			// ends can't be told, so what is behind it is not looked at.
			return false
		case n < len(head):
			head[n] = token
			n++
		}
		last = token
	}
}

func ends(head [3]string) bool {
	switch head[0] {
	case "commit", "end", "abort", "begin", "start":
		return true
	case "prepare":
		return head[1] == "transaction"
	case "rollback":
		next := head[1]
		if next == "work" || next == "transaction" {
			next = head[2]
		}
		return next != "to" // a savepoint
	}
	return false
}

// Empty says that there is no statement in sql: only spaces, comments and
// semicolons.
func Empty(sql string) bool { return look(sql).empty }

func empty(sql string) bool {
	s := scanner(sql)
	for {
		switch s.next() {
		case "":
			return true
		case ";":
		default:
			return false
		}
	}
}
