#!/bin/sh
# Inside the image's build stage: lay out the index that the image will hold.
#   image_index.sh CONTEXT NAME SRV     ->  SRV/index/{artifact.json, milvus.db, papers_*.db}, SRV/manifest.json
# NAME empty: none, an index is mounted later. builds/NAME absent: the sample is built here, any other name refused.
set -eu
context=$1 name=$2 srv=$3
work=$context/builds/$name manifest=$context/manifests/$name.json

mkdir -p "$srv/index"
if [ -z "$name" ]; then
  echo "no index: mount one over /srv/index and /srv/manifest.json, or set SERVE_MILVUS_URI"
  exit 0
fi
if [ ! -e "$work/milvus.db" ]; then
  if [ "$name" != sample ]; then
    echo "builds/$name holds no index: run \`just build-index $name\` before \`just image $name\`" >&2
    exit 1
  fi
  echo "builds/sample holds no index: building it here"
  # The pipeline's packages go beside the venv, which its interpreter sees through a .pth file, and stay in this stage.
  python3 -m venv /tmp/offline
  site=$(echo /tmp/offline/lib/python3*/site-packages)
  echo /opt/venv/lib/python3*/site-packages > "$site/serve.pth"
  /tmp/offline/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check --require-hashes --no-deps \
    --only-binary :all: -r "$context/requirements/pipeline.txt"
  cp "$manifest" /tmp/committed.json
  work=/tmp/work
  cd "$context"
  XDG_STATE_HOME=/tmp/state PYTHONDONTWRITEBYTECODE=1 /tmp/offline/bin/python -m pipeline build snapshots/sample \
    --work "$work" --manifest /tmp/built.json
  cmp /tmp/built.json "$manifest" || {
    echo "manifests/sample.json is not what snapshots/sample gives: run \`just build-index\` and commit it" >&2
    exit 1
  }
fi
collection=$(readlink "$work/milvus.db")
cp -R "$work/$collection" "$srv/index/$collection"
cp "$work/artifact.json" "$srv/index/artifact.json"
ln -s "$collection" "$srv/index/milvus.db"
cp "$manifest" "$srv/manifest.json"
chmod -R a+rX,go-w "$srv/index" "$srv/manifest.json"
