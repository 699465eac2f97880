# The read-only serving image: serve/ and manifests/ on the locked requirements, and one index.
#
#   docker build -t icml-paper-search .                             the sample index (built here when builds/ has none)
#   docker build -t icml-paper-search --build-arg INDEX=NAME .      builds/NAME with manifests/NAME.json; `just image NAME`
#   docker build -t icml-paper-search --build-arg INDEX= .          no index: mount one, or set SERVE_MILVUS_URI
#
# Holds for docker and for buildah 1.28: no heredoc, no COPY --link, --parents or --exclude, no `syntax` line.
# The release workflow sets PYTHON_IMAGE to the digest that the tag had on that day.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
SHELL ["/bin/sh", "-euc"]
WORKDIR /build
COPY requirements/serve.txt requirements/pipeline.txt requirements/
# pip stays outside the venv. The trim list departs from the packages' own file lists, so it is short, and a search
# inside the image is its test (scripts/image_check.sh). unchecked-hash: some engines round file times when they copy
# layers, and on a read-only root stale bytecode would be compiled again at every start.
RUN python3 -m venv --without-pip /opt/venv; \
    python3 -m pip --python /opt/venv/bin/python install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
      --require-hashes --no-deps --only-binary :all: -r requirements/serve.txt; \
    find /opt/venv/lib -depth -type d \( -name tests -o -name test -o -name include \) -exec rm -rf {} +; \
    find /opt/venv/lib -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.pyi' \) -delete; \
    for part in hf_xet onnxruntime/capi/libonnxruntime.so. pyarrow/libarrow_flight pyarrow/_flight pyarrow/libarrow_s3 pyarrow/_s3fs; do \
      rm -rf /opt/venv/lib/python3*/site-packages/"$part"*; \
    done; \
    python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib

COPY manifests/ /srv/app/manifests/
COPY serve/ /srv/app/serve/
RUN rm -f /srv/app/manifests/*.json; \
    python3 -m compileall -q --invalidation-mode unchecked-hash /srv/app

# The index: the one published collection of builds/INDEX, its link and its digests, and the manifest it must equal.
# (A mounted context is no part of every engine's cache key, but the manifests are, copied above.)
ARG INDEX=sample
RUN --mount=type=bind,source=.,target=/context \
    sh /context/scripts/image_index.sh /context "${INDEX}" /srv; \
    PYTHONPATH=/srv/app PYTHONDONTWRITEBYTECODE=1 /opt/venv/bin/python /context/scripts/image_gate.py /srv

FROM ${PYTHON_IMAGE} AS serve
ARG VERSION=0.1.0
ARG REVISION=unknown
# Equal to server.json, which the MCP registry compares; a test does too.
LABEL org.opencontainers.image.title="Paper search" \
      org.opencontainers.image.description="Search the papers of a conference by meaning and by words; read-only, compact text." \
      org.opencontainers.image.source="https://github.com/icml-paper-search/icml-paper-search" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      io.modelcontextprotocol.server.name="io.github.icml-paper-search/icml-paper-search"
COPY --from=build /opt/venv /opt/venv
COPY --from=build /srv /srv
# The only place that is written beside /tmp. A fresh named volume takes over owner and mode, a tmpfs only the mode.
RUN mkdir /state && chown 65532:65532 /state && chmod 1777 /state
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/srv/app \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    SERVE_HOST=0.0.0.0 \
    SERVE_PORT=8000 \
    SERVE_MANIFEST=/srv/manifest.json \
    SERVE_MILVUS_URI=/srv/index/milvus.db \
    SERVE_STATE=/state/serve.db \
    SERVE_LEDGER=/state/ledger.db
WORKDIR /srv/app
USER 65532:65532
VOLUME ["/state"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-S", "-c", "import http.client as h, os; c = h.HTTPConnection('127.0.0.1', int(os.environ['SERVE_PORT']), timeout=4); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m", "serve"]
