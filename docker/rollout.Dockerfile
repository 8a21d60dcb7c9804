# The rollout, on vLLM's image, which brings vLLM, torch and CUDA.
#
#   docker build --file docker/rollout.Dockerfile --tag slipstream-rollout:0.1.0 .
#
# docker/README.md says how to pin the base by its digest.
ARG PYTHON=python:3.11.15-slim-bookworm
ARG BASE=vllm/vllm-openai:v0.32.0

FROM ${PYTHON} AS wheel
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini=0.19.0-* \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY docker/constraints/build.txt docker/constraints/build.txt
RUN python -m pip install --no-cache-dir --requirement docker/constraints/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY charts/slipstream/values.yaml charts/slipstream/values.schema.json charts/slipstream/
COPY services services
RUN python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# The environment uses the vLLM and the torch of the base image. The build fails if pip installs others.
FROM ${BASE} AS install
COPY docker/constraints/rollout.txt /constraints.txt
COPY docker/check_nccl.py docker/nccl.txt /
COPY --from=wheel /wheels /wheels
RUN python3 -m venv --without-pip --system-site-packages /opt/slipstream \
    && set -- /wheels/*.whl \
    && python3 -m pip --python /opt/slipstream/bin/python install --no-cache-dir \
        --constraint /constraints.txt "$1[rollout]" \
    && /opt/slipstream/bin/python -c "import sys, torch, vllm, slipstream.rollout.__main__; \
        sys.exit(sys.prefix in torch.__file__ + vllm.__file__ and 'torch or vLLM is not that of the base')" \
    && /opt/slipstream/bin/python /check_nccl.py /nccl.txt

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="slipstream-rollout" \
      org.opencontainers.image.description="Slipstream: the rollout" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# NCCL loads libibverbs if it is installed, and uses InfiniBand and RoCE through it. The versions are those of the base image.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libibverbs1 ibverbs-providers librdmacm1 \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 slipstream \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /tmp slipstream \
    && install --directory --owner=10001 --group=0 --mode=0775 /runs
COPY --from=wheel /usr/bin/tini-static /usr/local/bin/tini
COPY --from=install /opt/slipstream /opt/slipstream
ENV PATH="/opt/slipstream/bin:${PATH}" \
    HOME=/tmp \
    USER=slipstream \
    VLLM_NO_USAGE_STATS=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /runs
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 50054 9464
ENTRYPOINT ["tini", "--", "python", "-m"]
CMD ["slipstream.rollout", "--help"]
