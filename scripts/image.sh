#!/usr/bin/env bash
# Build the serving image with docker, podman or buildah, whichever answers.
#
#   scripts/image.sh [NAME] [options for the engine's build]
#
# NAME: the index to bake in, builds/NAME (default: sample); "" for none.
# env: ENGINE (default: the first of docker, podman, buildah that answers), TAG (default: icml-paper-search:NAME),
#      PYTHON_IMAGE (default: the Dockerfile's tag; a release gives a digest).
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1-sample}
shift || true
ENGINE=${ENGINE:-$(scripts/image_engine.sh docker podman buildah)}
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
