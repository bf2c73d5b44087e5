// Package unsent answers, in pgx's terms, for statements that were refused before
// they were sent: whoever lends a transaction out and keeps its end to itself has
// to say something that reads like an answer.
package unsent
