#!/bin/sh
# Start a Redis for replay: TLS only, one user with the least permissions, every confirmed write on disk.
#
#   sh start.sh [redis-server option ...]        such as --maxmemory 4gb
#
# It reads the template of the users, the password file and the certificate, and writes to RUN_DIR and DATA_DIR only.
# Redis gets the SHA-256 of the password, and never the password. Newlines at the end of the file do not count.
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
  echo "$PASSWORD_FILE is empty: write the password of the Redis user replay to it" >&2
  exit 2
fi
digest=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
unset password
sed "s/PASSWORD_SHA256/$digest/" "$ACL_TEMPLATE" > "$RUN_DIR/users.acl"

# appendfsync always: with everysec, Redis answers before a slow flush is done.
# protected-mode no: protected mode guards servers without a password, and every user who may read or write here has one.
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
