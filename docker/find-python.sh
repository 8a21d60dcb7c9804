#!/usr/bin/env bash
# Prints a Python that Slipstream supports: docker/find-python.sh [PYTHON]. Without an argument, the first of
# 3.11, 3.12 and 3.13 that runs; 3.11 is the one that the whole test suite runs on.
set -euo pipefail

# Run each candidate: a version manager puts names on the PATH that start no Python.
supported='
import sys
version = "%d.%d" % sys.version_info[:2]
if version not in ("3.11", "3.12", "3.13"):
    sys.exit("Python " + version + " is not supported")
import ensurepip, venv
'

if [ -n "${1:-}" ]; then
  if ! reason=$("$1" -c "$supported" 2>&1); then
    echo "setup: PYTHON=$1 cannot be used: ${reason##*$'\n'}; Python 3.11, 3.12 or 3.13 with venv is needed" >&2
    exit 1
  fi
  echo "$1"
  exit 0
fi

for candidate in python3.11 python3.12 python3.13 python3 python; do
  if "$candidate" -c "$supported" >/dev/null 2>&1; then
    echo "$candidate"
    exit 0
  fi
done
echo "setup: no Python 3.11, 3.12 or 3.13 with the module venv is on the PATH; install one" \
  "(Debian: apt-get install python3.11-venv), or say PYTHON=/path/to/python" >&2
exit 1
