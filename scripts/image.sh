#!/usr/bin/env bash
# Build the serving image with docker, podman or buildah, whichever there is.
#
#   scripts/image.sh [NAME] [options for the engine's build]
#
# NAME: the index to bake in, builds/NAME (default: sample); "" for none.
# env: ENGINE (default: the first of docker, podman, buildah), TAG (default: icml-paper-search:NAME),
#      PYTHON_IMAGE (default: the Dockerfile's tag; a release gives a digest).
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1-sample}
shift || true
if [ -z "${ENGINE:-}" ]; then
  for ENGINE in docker podman buildah ""; do
    command -v "$ENGINE" >/dev/null && break
  done
  [ -n "$ENGINE" ] || {
    echo "no docker, podman or buildah found: install one of them, or run 'just serve $name' without an image" >&2
    exit 2
  }
fi
tag=${TAG:-icml-paper-search:${name:-bare}}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
arguments=(--build-arg "INDEX=$name" --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
[ -z "${PYTHON_IMAGE:-}" ] || arguments+=(--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE")
# podman and buildah drop HEALTHCHECK from their own format.
case $ENGINE in *podman* | *buildah*) arguments+=(--format docker) ;; esac

# shellcheck disable=SC2086 -- ENGINE may carry options of its own
$ENGINE build "${arguments[@]}" "$@" -t "$tag" .
echo "built $tag"
