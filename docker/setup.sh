#!/usr/bin/env bash
# Makes the virtual environment of the laptop: every extra, CPU wheels where there is no GPU.
# The containers install the same extras, one image a pod.
set -euo pipefail

python=${PYTHON:-python3.11}
venv=${VENV:-.venv}

command -v "$python" >/dev/null || {
  echo "setup: $python is not on the PATH; install Python 3.11, or say PYTHON=/path/to/python3.11" >&2
  exit 1
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
  echo "setup: a GPU was found; installing the CUDA build (several gigabytes)"
  pip install --editable '.[learner,rollout-gpu,verifier,console,cluster,dev]'
  exit 0
fi

echo "setup: no GPU was found; installing the CPU build (3.5 GB, some minutes)"
bash docker/cpu-wheels.sh "$venv/bin/python" --editable '.[learner,rollout-cpu,verifier,console,cluster,dev]'
