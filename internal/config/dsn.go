package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// CheckDSN is the rule for a connection string. Its error names the parameter
// that is wrong, and the file if there is one, and no other value: a parser's own
// text may quote what it could not read, such as a password in the wrong place.
func CheckDSN(dsn string) error {
	_, err := pgxpool.ParseConfig(dsn)
	if err == nil {
		return nil
	}
	// Behind the connection string, which the text begins with.
	text := err.Error()
	text = text[strings.LastIndex(text, "`: ")+1:]
	for _, p := range dsnProblems {
		if !strings.Contains(text, p.says) {
			continue
		}
		var file *fs.PathError
		if errors.As(err, &file) {
			return fmt.Errorf("%s: %s: %w: %s", p.parameter, file.Path, file.Err, p.remedy)
		}
		return fmt.Errorf("%s: %s", p.parameter, p.remedy)
	}
	return errors.New("is not a connection string: want postgres://user@host:5432/database or key=value pairs; special characters in a URL's password must be percent-encoded")
}

// readable is what is said of a file that could not be opened.
const readable = "it must name a readable file in PEM"

// dsnProblems are what the driver says of a connection string that it could read
// and can't follow; the parameter; and what helps.
var dsnProblems = []struct{ says, parameter, remedy string }{
	{"invalid port", "port", "want a number from 1 to 65535, such as postgres://user@host:5432/database; special characters in a URL's password must be percent-encoded"},
	{"port numbers to", "port", "want one, or one for each host"},
	{"invalid connect_timeout", "connect_timeout", "want a number of seconds without a unit, such as 10"},
	{"sslmode is invalid", "sslmode", "want one of disable, allow, prefer, require, verify-ca, verify-full"},
	{"invalid sslcertmode", "sslcertmode", "want one of disable, allow, require"},
	{`both "sslcert" and "sslkey"`, "sslcert, sslkey", "set both or neither"},
	{"unable to read CA file", "sslrootcert", readable},
	{"unable to add CA", "sslrootcert", "the file holds no certificate in PEM"},
	{"unable to read cert", "sslcert", readable},
	{"unable to load cert", "sslcert", "the file holds no certificate in PEM that belongs to the sslkey"},
	{"unable to read sslkey", "sslkey", readable},
	{"failed to decode sslkey", "sslkey", "the file holds no key in PEM"},
	{"unable to find sslpassword", "sslpassword", "it is missing, and the sslkey is encrypted"},
	{"unable to decrypt key", "sslpassword", "it doesn't decrypt the sslkey"},
	{"failed to configure TLS", "sslmode, sslrootcert, sslcert, sslkey", "they don't fit together, or a file of theirs holds something else"},
	{"failed to read service file", "servicefile", "it must name a readable service file (PGSERVICEFILE, or ~/.pg_service.conf)"},
	{"unable to find service", "service", "the service file has no such service (servicefile, PGSERVICEFILE or ~/.pg_service.conf)"},
	{"failed to read service", "service", "it can't be read from the service file (servicefile, PGSERVICEFILE or ~/.pg_service.conf)"},
	{"target_session_attrs", "target_session_attrs", "want one of any, read-write, read-only, primary, standby, prefer-standby"},
	{"min_protocol_version", "min_protocol_version", "want 3.0, 3.2 or latest, and not above max_protocol_version"},
	{"max_protocol_version", "max_protocol_version", "want 3.0, 3.2 or latest"},
	{"channel_binding", "channel_binding", "want one of disable, prefer, require"},
	{"require_auth", "require_auth", "want a list of none, password, md5, scram-sha-256 and others, as libpq has it"},
	{"pool_max_conns", "pool_max_conns", "want a number from 1"},
	{"pool_min_conns", "pool_min_conns", "want a number"},
	{"pool_min_idle_conns", "pool_min_idle_conns", "want a number"},
	{"pool_max_conn_lifetime_jitter", "pool_max_conn_lifetime_jitter", "want a duration, such as 10s"},
	{"pool_max_conn_lifetime", "pool_max_conn_lifetime", "want a duration, such as 1h"},
	{"pool_max_conn_idle_time", "pool_max_conn_idle_time", "want a duration, such as 30m"},
	{"pool_health_check_period", "pool_health_check_period", "want a duration, such as 1m"},
	{"pool_ping_timeout", "pool_ping_timeout", "want a duration, such as 5s"},
	{"statement_cache_capacity", "statement_cache_capacity", "want a number"},
	{"description_cache_capacity", "description_cache_capacity", "want a number"},
	{"default_query_exec_mode", "default_query_exec_mode", "want one of cache_statement, cache_describe, describe_exec, exec, simple_protocol"},
}
