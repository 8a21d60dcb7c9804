# Replay, the verifier, actors and the probe, on a slim Python image without torch.
#
#   docker build --file docker/services.Dockerfile --tag slipstream-services:0.1.0 .
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
COPY docker/constraints/services.txt /constraints.txt
COPY --from=wheel /wheels /wheels
RUN python3 -m venv --without-pip /opt/slipstream \
    && set -- /wheels/*.whl \
    && python3 -m pip --python /opt/slipstream/bin/python install --no-cache-dir \
        --constraint /constraints.txt "$1[actor,datasets,openenv,mcp,parquet,verifier]" \
    && python3 -m pip --python /opt/slipstream/bin/python check \
    && /opt/slipstream/bin/python -c "import transformers, slipstream.replay.__main__, slipstream.verifier.__main__, \
        slipstream.actor.__main__"

FROM ${PYTHON}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="slipstream-services" \
      org.opencontainers.image.description="Slipstream: replay, the verifier and actors" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap=0.8.0-* \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 slipstream \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /tmp slipstream \
    && install --directory --owner=10001 --group=0 --mode=0775 /runs
COPY --from=wheel /usr/bin/tini-static /usr/local/bin/tini
COPY --from=install /opt/slipstream /opt/slipstream
ENV PATH="/opt/slipstream/bin:${PATH}" \
    HOME=/tmp \
    USER=slipstream \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /runs
USER 10001:10001
STOPSIGNAL SIGTERM
EXPOSE 50051 50052 9464
ENTRYPOINT ["tini", "--", "python", "-m"]
CMD ["slipstream.replay", "--help"]
