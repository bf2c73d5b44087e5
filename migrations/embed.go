package migrations

import "embed"

//go:embed producer/*.sql consumer/*.sql
var embedded embed.FS
