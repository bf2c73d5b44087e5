// Package sqltext looks at the text of SQL statements as far as must be known
// before one is sent: whether it would begin or end the transaction that it is
// sent in, whether it may change what others in the transaction run under, and
// whether there is anything in it at all.
//
// It reads what PostgreSQL's own scanner would read over (comments, texts, quoted
// names, dollar quotes), so that what is in them is not mistaken for a statement.
// It is no fence: a text that the client rewrites afterwards, or a setting that
// changes how texts are read (standard_conforming_strings), gets past it. Who
// relies on the transaction looks at its state as well.
package sqltext
