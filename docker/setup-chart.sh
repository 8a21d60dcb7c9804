#!/usr/bin/env bash
# Installs what `make test-chart` needs beside the virtual environment: Prometheus with promtool, a Redis with TLS,
# bubblewrap, and the schemas of custom resources.
set -euo pipefail

need() {  # need COMMAND PACKAGE
  command -v "$1" >/dev/null && return
  command -v apt-get >/dev/null || {
    echo "setup-chart: $1 is not on the PATH; install it (Debian: apt-get install $2)" >&2
    exit 1
  }
  echo "setup-chart: installing $2"
  policy=/usr/sbin/policy-rc.d  # Debian starts a service that it installs, unless this says no
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && trap "rm -f $policy" EXIT; }
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$2" >/dev/null
}

need promtool prometheus
need redis-server redis-server
need ip iproute2
need bwrap bubblewrap
need tini tini
need npm npm
npm ci --silent --no-audit --no-fund --prefix tests/chart
