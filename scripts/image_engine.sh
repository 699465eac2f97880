#!/usr/bin/env bash
# Print the first of the container engines given that answers: a command alone may have no daemon behind it.
#
#   scripts/image_engine.sh docker podman buildah
set -euo pipefail

silent=
for engine; do
  command -v "$engine" >/dev/null || continue
  if "$engine" info >/dev/null 2>&1; then
    echo "$engine"
    exit 0
  fi
  silent="$silent, '$engine info' fails"
done
echo "none of $* answers${silent}: start or install one of them, or serve without an image: 'just serve NAME'" >&2
exit 2
