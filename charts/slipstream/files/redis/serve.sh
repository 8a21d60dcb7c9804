#!/bin/sh
# Runs start.sh, and has Redis load its certificate again whenever it is renewed.
#
# The user for that exists in this container alone: its password is drawn here and kept in this shell's memory.
set -eu
umask 077
: "${TLS_DIR:=/etc/redis/tls}"
: "${RUN_DIR:=/run/redis}"
: "${PORT:=6379}"
: "${LOOK_SECONDS:=30}"

secret=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
digest=$(printf %s "$secret" | sha256sum | cut -d ' ' -f 1)
{
  cat /etc/redis/users.acl.template
  echo "user keeper on #$digest resetkeys resetchannels -@all +config|set"
} > "$RUN_DIR/template"

certificate() { cat "$TLS_DIR/tls.crt" "$TLS_DIR/tls.key" "$TLS_DIR/ca.crt" | sha256sum; }

load() {
  REDISCLI_AUTH=$secret redis-cli -p "$PORT" --user keeper --no-auth-warning --tls --insecure CONFIG SET \
    tls-cert-file "$TLS_DIR/tls.crt" tls-key-file "$TLS_DIR/tls.key" tls-ca-cert-file "$TLS_DIR/ca.crt"
}

keep() {
  while sleep "$LOOK_SECONDS" && kill -0 $$; do
    now=$(certificate)
    [ "$now" = "$loaded" ] && continue
    answer=$(load) || true
    if [ "$answer" = OK ]; then
      loaded=$now
      echo "the renewed certificate is loaded"
    else
      echo "the renewed certificate cannot be loaded: $answer" >&2
    fi
  done
}

if [ -d "$TLS_DIR" ]; then
  loaded=$(certificate)
  keep &
fi
ACL_TEMPLATE="$RUN_DIR/template" exec sh /etc/redis/start.sh "$@"
