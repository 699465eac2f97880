#!/usr/bin/env bash
# Run an image as docs/operations.md says and ask it one search over MCP: for machines that have docker or podman.
#
#   scripts/image_smoke.sh IMAGE        env: ENGINE (default: the first that answers), PORT (default 18000)
set -euo pipefail
image=${1:?image}
engine=${ENGINE:-$("$(dirname "$0")/image_engine.sh" docker podman)}
port=${PORT:-18000}
name=papers-smoke-$$
trap '$engine rm -f -v "$name" >/dev/null 2>&1; $engine volume rm -f "$name" >/dev/null 2>&1' EXIT

$engine run -d --name "$name" -p "127.0.0.1:$port:8000" --read-only \
  --tmpfs /tmp:rw,noexec,nosuid,nodev,size=256m,mode=1777 --cap-drop ALL --security-opt no-new-privileges \
  --memory 2g --pids-limit 256 -v "$name:/state" "$image" >/dev/null
for _ in $(seq 120); do
  curl -sf "http://127.0.0.1:$port/readyz" && break
  sleep 0.5
done
echo
answer=$(curl -sf -m 30 -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' -d \
  '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search_papers","arguments":{"query":"graph neural network","top_k":3}}}' \
  "http://127.0.0.1:$port/mcp") || {
  $engine logs "$name"
  exit 1
}
grep -qE '1\. \[[^]]+\]' <<< "$answer" || {
  echo "no paper in the answer: $answer" >&2
  exit 1
}
$engine stop -t 15 "$name" >/dev/null
code=$($engine inspect "$name" --format '{{.State.ExitCode}}')
[ "$code" = 0 ] || {
  echo "SIGTERM ended it with exit code $code" >&2
  exit 1
}
echo "$image serves, finds papers and stops in order"
