package config

import (
	"io"
	"log/slog"
)

// Log is the settings of a command's log.
type Log struct {
	Format, Level string
}

// Register adds them to a set.
func (l *Log) Register(s *Set) {
	s.String(&l.Format, "log-format", "LOG_FORMAT", "text", "form of the log on standard error: text or json", Check(OneOf("text", "json")))
	s.String(&l.Level, "log-level", "LOG_LEVEL", "info", "least level that is logged: debug, info, warn or error", Check(OneOf("debug", "info", "warn", "error")))
}

// Logger makes the logger.
func (l *Log) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // checked by Parse
	opts := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
