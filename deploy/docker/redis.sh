#!/bin/sh
# Starts Redis in a container, with redis.conf and the passwords from the environment variables that compose.yaml sets.
#   redis.sh CONF [OPTION OF redis-server]...
set -eu
conf=$1
shift
umask 077
digest() { printf %s "$1" | sha256sum | cut -d ' ' -f 1; }
# Without replicas and Sentinels their users are removed; compose.yaml gives the folder as an option.
sed -e "s/FILL-IN-SHA256-OF-THE-GATEWAYS-PASSWORD/$(digest "$TOLLGATE_REDIS_PASSWORD")/" \
  -e "s/FILL-IN-SHA256-OF-THE-OPERATORS-PASSWORD/$(digest "$REDIS_OPERATOR_PASSWORD")/" \
  -e '/^user replica /d' -e '/^user sentinel /d' -e '/^dir /d' \
  "$conf" >"${TMPDIR:-/tmp}/redis.conf"
exec redis-server "${TMPDIR:-/tmp}/redis.conf" "$@"
