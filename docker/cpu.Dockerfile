# Every pod and the slipstream command without a GPU: for a laptop, or a local cluster such as kind.
#
#   docker build --file docker/cpu.Dockerfile --tag slipstream-cpu:0.1.0 .
#
# docker/README.md says how to pin the base by its digest.
ARG PYTHON=python:3.11.15-slim-bookworm

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

FROM ${PYTHON} AS install
COPY docker/constraints/cpu.txt docker/cpu-wheels.sh /
COPY --from=wheel /wheels /wheels
RUN python3 -m venv /opt/slipstream \
    && set -- /wheels/*.whl \
    && PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 bash /cpu-wheels.sh /opt/slipstream/bin/python \
        --constraint /cpu.txt "$1[learner,rollout-cpu,verifier,console,cluster,datasets,openenv,mcp,otel]" \
    && /opt/slipstream/bin/python -c "import slipstream.learner.__main__, slipstream.rollout.__main__, slipstream.actor.__main__"

FROM ${PYTHON}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="slipstream-cpu" \
      org.opencontainers.image.description="Slipstream: every pod, without a GPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap=0.8.0-* libnuma1=2.0.16-* \
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
EXPOSE 50051 50052 50053 50054 50055 29400 29500 9464 8080
ENTRYPOINT ["tini", "--", "python", "-m"]
CMD ["slipstream.cli", "--help"]
