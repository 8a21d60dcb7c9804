#!/bin/sh
# Starts a Redis for replay: TLS only, one user with the least rights, nothing lost that was confirmed.
#
#   sh start.sh [redis-server option ...]        such as --maxmemory 4gb
#
# Reads the template of the users, the password and the certificate; writes RUN_DIR and DATA_DIR only. The
# password itself never leaves its file: what Redis gets to see is its SHA-256. Newlines at its end do not count.
set -eu
umask 077
: "${ACL_TEMPLATE:=/etc/redis/users.acl.template}"
: "${PASSWORD_FILE:=/etc/redis/secret/password}"
: "${TLS_DIR:=/etc/redis/tls}"
: "${RUN_DIR:=/run/redis}"
: "${DATA_DIR:=/data}"
: "${PORT:=6379}"

password=$(cat "$PASSWORD_FILE")
if [ -z "$password" ]; then
  echo "$PASSWORD_FILE is empty: put the password of Redis' user replay there" >&2
  exit 2
fi
digest=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
unset password
sed "s/PASSWORD_SHA256/$digest/" "$ACL_TEMPLATE" > "$RUN_DIR/users.acl"

# appendfsync always: everysec answers before it writes while a flush is slow.
# protected-mode no: it is for servers without a password, and this one has no user without.
exec redis-server \
  --port 0 \
  --tls-port "$PORT" \
  --tls-cert-file "$TLS_DIR/tls.crt" \
  --tls-key-file "$TLS_DIR/tls.key" \
  --tls-ca-cert-file "$TLS_DIR/ca.crt" \
  --tls-auth-clients no \
  --aclfile "$RUN_DIR/users.acl" \
  --protected-mode no \
  --dir "$DATA_DIR" \
  --save "" \
  --appendonly yes \
  --appendfsync always \
  --maxmemory-policy noeviction \
  --daemonize no \
  "$@"
