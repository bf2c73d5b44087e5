#!/bin/sh
# Makes a random password for PostgreSQL and the connection string that goes with
# it, once. The folder is closed to others; the files in it are not, because the
# containers read them as users of their own.
set -eu
cd "$(dirname "$0")"
if [ -e secrets/postgres_password ]; then
    echo "compose/secrets exists already: nothing to do"
    exit 0
fi
umask 022
mkdir -p -m 0700 secrets
password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
printf 'postgres://fenceline:%s@postgres:5432/fenceline?sslmode=disable' "$password" > secrets/postgres_dsn
printf '%s' "$password" > secrets/postgres_password
echo "compose/secrets made"
