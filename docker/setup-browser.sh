#!/usr/bin/env bash
# Installs what the tests of the console in a browser need beside the virtual environment: Chromium.
set -euo pipefail

if ! command -v chromium >/dev/null; then
  command -v apt-get >/dev/null || {
    echo "setup-browser: chromium is not on the PATH; install it (Debian: apt-get install chromium)" >&2
    exit 1
  }
  echo "setup-browser: installing chromium"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi
