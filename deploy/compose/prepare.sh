#!/usr/bin/env bash
# Makes the folders, passwords and certificates that compose.yaml mounts. A second run renews the certificates.
set -euo pipefail
cd "$(dirname "$0")/.."

slipstream=${SLIPSTREAM:-slipstream}  # the command that makes certificates
state=compose/state
umask 077
mkdir -p $state/{certs,data,models,prometheus,redis,runs,secrets}
for secret in redis-password grafana-password; do
  [ -s "$state/secrets/$secret" ] || head -c 32 /dev/urandom | sha256sum | cut -c 1-48 >"$state/secrets/$secret"
done
"$slipstream" certs $state/certs --san redis=redis
# The containers run as you, so that they can read your secrets and write your folders.
echo "SLIPSTREAM_USER=$(id -u):$(id -g)" >.env
