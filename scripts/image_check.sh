#!/usr/bin/env bash
# Build the image and prove it, on a machine without a container engine or a container registry.
#
#   scripts/image_check.sh              root on Debian; reaches Debian's packages and PyPI, nothing else
#
# buildah builds the Dockerfile as it stands, on a base made from Debian's packages that has the shape of
# python:3.11-slim-bookworm; podman runs the image read-only, without capabilities, on a loopback port.
# env: WORK (tools' storage, kept between runs; default /tmp/image-check), PORT (default 18000).
# Last line: `N passed, N failed`; exit code 1 when a check failed.
set -euo pipefail
cd "$(dirname "$0")/.."
WORK=${WORK:-/tmp/image-check}
PORT=${PORT:-18000}
BASE=localhost/pybase:bookworm
IMAGE=localhost/icml-paper-search:check
BARE=localhost/icml-paper-search:check-bare
NAME=papers-check-$$
CA=/etc/ssl/certs/ca-certificates.crt
OVER_BASE_BYTES_MAX=550000000
READY_MS_MAX=10000
QUERY="graph neural network"
passed=0
failed=0

main() {
  mkdir -p "$WORK"
  WORK=$(realpath "$WORK") # podman insists on one absolute path
  install_tools
  POD=(podman --root "$WORK/storage" --runroot "$WORK/run")
  BUILD=(buildah --root "$WORK/storage" --runroot "$WORK/run")
  trap clean_up EXIT
  make_base
  build_image "$IMAGE" sample
  build_image "$BARE" ""
  check_contents
  check_running
  check_mounted
  check_refusals
  say "done"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

# --- building ---------------------------------------------------------------------------------------------------

install_tools() {
  if [ "$(command -v buildah podman runc mmdebstrap curl iptables | wc -l)" -lt 6 ]; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends \
      buildah podman runc mmdebstrap netavark iptables catatonit curl ca-certificates >/dev/null
  fi
  # runc: Debian's crun refuses mixed control groups. The limits: podman's own defaults want CAP_SYS_RESOURCE.
  cat > "$WORK/containers.conf" <<'C'
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
C
  export CONTAINERS_CONF="$WORK/containers.conf"
  say "$(buildah --version | cut -d' ' -f1-3), $(podman --version)"
}

make_base() {
  if ! "${POD[@]}" image exists "$BASE"; then
    if [ ! -s "$WORK/base.tar" ]; then
      mmdebstrap -q --format=tar --variant=minbase \
        --include=ca-certificates,netbase,tzdata,python3.11,python3-minimal,python3-venv,python3-pip \
        --aptopt='Apt::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='for n in python python3 python3.11; do ln -sf /usr/bin/python3.11 "$1/usr/local/bin/$n"; done' \
        --customize-hook='rm -f "$1"/usr/lib/python3.11/EXTERNALLY-MANAGED "$1"/etc/resolv.conf "$1"/etc/hostname' \
        bookworm "$WORK/base.tar.part"
      mv "$WORK/base.tar.part" "$WORK/base.tar"
    fi
    "${POD[@]}" import -q --change 'CMD ["python3"]' --change 'ENV LANG=C.UTF-8' \
      --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' "$WORK/base.tar" "$BASE" >/dev/null
  fi
  say "base: $(size_of "$BASE") bytes"
}

# build_image TAG INDEX: the certificates of this machine are mounted, so they are in no layer.
build_image() {
  ENGINE="${BUILD[*]}" PYTHON_IMAGE=$BASE TAG=$1 scripts/image.sh "$2" --layers --pull-never -v "$CA:$CA:ro" \
    > "$WORK/build.log" 2>&1 || {
    tail -30 "$WORK/build.log"
    echo "the build failed; its output is $WORK/build.log" >&2
    exit 1
  }
  say "built $1: $(size_of "$1") bytes, $(($(size_of "$1") - $(size_of "$BASE"))) over the base"
}

# --- what is in it ----------------------------------------------------------------------------------------------

check_contents() {
  check "at most $OVER_BASE_BYTES_MAX bytes over the base" \
    test $(($(size_of "$IMAGE") - $(size_of "$BASE"))) -le "$OVER_BASE_BYTES_MAX"
  check "labels equal server.json" labels_equal_server_json
  check "no setting of this machine in the configuration" no_host_settings
  MOUNTED=$("${POD[@]}" image mount "$IMAGE")
  check "the certificates of this machine are not in it" not cmp -s "$CA" "$MOUNTED$CA"
  check "no stale bytecode" python3 - "$MOUNTED/opt" "$MOUNTED/srv" < <(stale_bytecode)
  check "no pipeline, no snapshot" test -z \
    "$(find "$MOUNTED/srv" \( -name pipeline -o -name 'papers.parquet' -o -name 'papers.jsonl*' \) -print -quit)"
  check "no other manifest" test "$(cd "$MOUNTED" && find srv -name '*.json' -exec grep -l '"catalogue"' {} +)" = \
    srv/manifest.json
  "${POD[@]}" image unmount "$IMAGE" >/dev/null
}

labels_equal_server_json() {
  "${POD[@]}" image inspect "$IMAGE" --format '{{json .Config.Labels}}' > "$WORK/labels.json"
  python3 - "$WORK/labels.json" server.json <<'P'
import json, sys
labels, server = (json.load(open(path, encoding="utf-8")) for path in sys.argv[1:])
wanted = {
    "io.modelcontextprotocol.server.name": server["name"],
    "org.opencontainers.image.title": server["title"],
    "org.opencontainers.image.source": server["repository"]["url"],
    "org.opencontainers.image.version": server["version"],
    "org.opencontainers.image.description": server["description"],
    "org.opencontainers.image.licenses": "Apache-2.0",
}
differing = {key: (value, labels.get(key)) for key, value in wanted.items() if labels.get(key) != value}
for key, (value, found) in differing.items():
    print(f"{key}: server.json {value!r}, image {found!r}")
sys.exit(bool(differing))
P
}

no_host_settings() {
  ! "${POD[@]}" image inspect "$IMAGE" | grep -qiE 'SSL_CERT|PIP_CERT|PIP_INDEX|UV_INDEX|PROXY'
}

stale_bytecode() {
  cat <<'P'
import os, struct, sys
stale = 0
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        for name in names if folder.endswith("__pycache__") else ():
            with open(os.path.join(folder, name), "rb") as file:
                head = file.read(16)
            source = os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")
            if len(head) == 16 and os.path.exists(source) and not struct.unpack("<I", head[4:8])[0] & 1:
                found = os.stat(source)
                stale += struct.unpack("<II", head[8:16]) != (int(found.st_mtime), found.st_size)
print(f"stale .pyc files: {stale}") if stale else None
sys.exit(bool(stale))
P
}

# --- running ----------------------------------------------------------------------------------------------------

# run NAME IMAGE [podman arguments]: as docs/operations.md says: read-only, no capability, one tmpfs, one state volume.
run() {
  local name=$1 image=$2
  shift 2
  "${POD[@]}" run -d --name "$name" -p "127.0.0.1:$PORT:8000" --read-only --read-only-tmpfs=false \
    --tmpfs /tmp:rw,noexec,nosuid,nodev,size=256m,mode=1777 --cap-drop ALL --security-opt no-new-privileges \
    --memory 2g --pids-limit 256 "$@" "$image" 2> >(grep -v 'systemd connection' >&2) >/dev/null
}

inside() { "${POD[@]}" exec "$NAME" "$@"; }

cpu_seconds() { inside sh -c 'cat /proc/[0-9]*/stat' | awk '{ ticks += $14 + $15 } END { print ticks / 100 }'; }

check_running() {
  "${POD[@]}" volume create "$NAME" >/dev/null
  local started ready_ms
  # The best of up to three: another program may hold the cores during one.
  for _ in 1 2 3; do
    "${POD[@]}" rm -f -v -t 15 "$NAME" >/dev/null 2>&1
    started=$(now_ms)
    run "$NAME" "$IMAGE" -v "$NAME:/state"
    wait_ready "$NAME" || return 0
    ready_ms=$(($(now_ms) - started))
    say "ready after $ready_ms ms, $(cpu_seconds) s of CPU: $(cat "$WORK/ready.json")"
    [ "$ready_ms" -gt "$READY_MS_MAX" ] || break
  done
  check "ready within $READY_MS_MAX ms of a cold start" test "$ready_ms" -le "$READY_MS_MAX"
  check "/healthz answers" curl -sf -o /dev/null "http://127.0.0.1:$PORT/healthz"
  check "HEALTHCHECK of the image passes" "${POD[@]}" healthcheck run "$NAME"
  check "user 65532, not root" test "$(inside id -u):$(inside id -g)" = 65532:65532
  check "no capability, no new privileges" no_capabilities
  check "the root file system is read-only" not inside sh -c 'echo x > /x || echo x > /srv/x || echo x > /opt/x' 2>/dev/null
  check "no setuid file outside the base" test -z "$(inside find /opt /srv -xdev -perm /6000)"
  check "neither pipeline nor polars can be imported" inside python -c '
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) for name in ("pipeline", "polars", "msgspec", "psutil")))'
  check "MCP initialize answers" initialize_answers
  check "a search over MCP finds papers" search_answers
  check "a search on the command line inside answers" inside python -m serve search "$QUERY"
  check "only /tmp and /state are written" only_state_written
  local before
  before=$(now_ms)
  "${POD[@]}" stop -t 15 "$NAME" >/dev/null 2>&1
  check "SIGTERM stops it in order" test "$("${POD[@]}" inspect "$NAME" --format '{{.State.ExitCode}}')" = 0
  check "SIGTERM stops it within 9 s" test $(($(now_ms) - before)) -lt 9000
}

no_capabilities() {
  inside cat /proc/self/status > "$WORK/status"
  grep -q '^CapBnd:.*0000000000000000' "$WORK/status" && grep -q '^NoNewPrivs:.*1' "$WORK/status"
}

rpc() {
  curl -sf -m 30 -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' -d "$1" \
    "http://127.0.0.1:$PORT/mcp"
}

initialize_answers() {
  rpc '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"check","version":"0"}}}' |
    grep -q '"serverInfo"'
}

search_answers() {
  rpc "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"search_papers\",\"arguments\":{\"query\":\"$QUERY\",\"top_k\":3}}}" \
    > "$WORK/search.json"
  grep -qE '1\. \[[^]]+\]' "$WORK/search.json" && ! grep -q '"isError":true' "$WORK/search.json"
}

# The state volume holds the database and its key, all of uid 65532; the container's own layer did not change.
only_state_written() {
  local odd
  odd=$(inside find /state -mindepth 1 \( ! -name 'serve.db*' ! -name 'ledger.db*' -o ! -user 65532 \) -print)
  odd+=$("${POD[@]}" diff "$NAME" | grep -vE '^[AC] /(state|tmp|etc|run|dev|proc|sys|srv)?(/(hosts|hostname|resolv\.conf|\.containerenv|secrets|mtab|index|manifest\.json))?$' || true)
  [ -z "$odd" ] || { echo "$odd"; return 1; }
}

# --- other ways to an index, and refusals ------------------------------------------------------------------------

# The index taken out of the image, as an operator's folder would hold it.
take_index() {
  rm -rf "$WORK/taken"
  mkdir -p "$WORK/taken"
  MOUNTED=$("${POD[@]}" image mount "$IMAGE")
  cp -R "$MOUNTED/srv/index" "$WORK/taken/index"
  cp "$MOUNTED/srv/manifest.json" "$WORK/taken/manifest.json"
  "${POD[@]}" image unmount "$IMAGE" >/dev/null
}

check_mounted() {
  take_index
  local index=$WORK/taken/index manifest=$WORK/taken/manifest.json
  if [ -e builds/sample/milvus.db ]; then # as the build left it, read by uid 65532
    index=$PWD/builds/sample manifest=$PWD/manifests/sample.json
  fi
  run "$NAME-mounted" "$BARE" --tmpfs /state:rw,mode=1777 -v "$index:/srv/index:ro" -v "$manifest:/srv/manifest.json:ro"
  check "an image without an index serves a mounted one, read-only" wait_ready "$NAME-mounted"
  check "a search on the mounted index finds papers" search_answers
  "${POD[@]}" rm -f -v -t 5 "$NAME-mounted" >/dev/null 2>&1
}

# refused WHAT CODE TEXT [podman arguments]: a container that exits by itself, with TEXT in its log.
refused() {
  local what=$1 code=$2 text=$3
  shift 3
  local name=$NAME-refused
  run "$name" "$IMAGE" --tmpfs /state:rw,mode=1777 "$@"
  local found
  found=$(timeout 60 "${POD[@]}" wait "$name" || echo "still running")
  "${POD[@]}" logs "$name" > "$WORK/refused.log" 2>&1
  "${POD[@]}" rm -f -v -t 2 "$name" >/dev/null 2>&1
  check "$what: exit code $code" test "$found" = "$code"
  check "$what: the log names it" grep -q -- "$text" "$WORK/refused.log"
  say "$(tail -2 "$WORK/refused.log" | cut -c1-300)"
}

check_refusals() {
  python3 - "$WORK/taken/manifest.json" "$WORK/taken" <<'P'
import hashlib, json, pathlib, sys
manifest, folder = json.load(open(sys.argv[1], encoding="utf-8")), pathlib.Path(sys.argv[2])
manifest["corpus"]["rows"] += 1
(folder / "edited.json").write_text(json.dumps(manifest), encoding="utf-8")
del manifest["digest"]
text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
manifest["digest"] = hashlib.sha256(text.encode()).hexdigest()
(folder / "other.json").write_text(json.dumps(manifest), encoding="utf-8")
P
  cp -R "$WORK/taken/index" "$WORK/taken/damaged"
  local file
  file=$(find "$WORK/taken/damaged" -name '*.parquet' | sort | head -1)
  printf 'x' >> "$file"
  refused "a manifest edited by hand" 6 digest -v "$WORK/taken/edited.json:/srv/manifest.json:ro"
  refused "a manifest of another index" 6 rows -v "$WORK/taken/other.json:/srv/manifest.json:ro"
  refused "a damaged index file" 6 "$(basename "$file")" -v "$WORK/taken/damaged:/srv/index:ro"
}

# --- small things -----------------------------------------------------------------------------------------------

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

now_ms() { date +%s%3N; }

not() { ! "$@"; }

size_of() { "${POD[@]}" image inspect "$1" --format '{{.Size}}'; }

check() {
  local what=$1
  shift
  if "$@" > "$WORK/check.log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $what"
    tail -5 "$WORK/check.log"
  fi
}

# wait_ready NAME: until /readyz says 200, at most 60 s.
wait_ready() {
  for _ in $(seq 600); do
    curl -sf -o "$WORK/ready.json" "http://127.0.0.1:$PORT/readyz" && return 0
    [ "$("${POD[@]}" inspect "$1" --format '{{.State.Running}}')" = true ] || break
    sleep 0.1
  done
  echo "FAILED: $1 never became ready"
  failed=$((failed + 1))
  "${POD[@]}" logs "$1" 2>&1 | tail -20
  return 1
}

clean_up() {
  "${POD[@]}" rm -f -v -t 2 "$NAME" "$NAME-mounted" "$NAME-refused" >/dev/null 2>&1 || true
  "${POD[@]}" volume rm -f "$NAME" >/dev/null 2>&1 || true
}

main
