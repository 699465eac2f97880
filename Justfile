# Every recipe installs what it needs into .venv first; python3 (>= 3.11) and pip are enough.

set shell := ["bash", "-euo", "pipefail", "-c"]
# Options as "$@": an area like "Applications->Health" reaches the program as one word.
set positional-arguments

python := ".venv/bin/python"

[private]
default:
    @just --list --unsorted

[private]
install group:
    @python3 scripts/install.py {{ group }}

# Build, validate and publish snapshots/SNAPSHOT
build-index snapshot="sample" provider="local": (install "pipeline")
    {{ python }} -m pipeline build snapshots/{{ quote(snapshot) }} --provider {{ quote(provider) }}

# Compare snapshot, Parquet, collection and manifest; what CI runs
validate name="sample": (install "pipeline")
    {{ python }} -m pipeline validate --work builds/{{ quote(name) }} --manifest manifests/{{ quote(name) }}.json

# Serve MCP on http://127.0.0.1:8000/mcp: just serve [name] [options of python -m serve]
serve name="sample" *options: (install "serve")
    {{ python }} -m serve --manifest manifests/{{ quote(name) }}.json --milvus-uri builds/{{ quote(name) }}/milvus.db --state builds/{{ quote(name) }}/state.db "${@:2}"

# One search from the terminal: just search "QUERY" [name] [options of python -m serve search]
search query name="sample" *options: (install "serve")
    {{ python }} -m serve search --manifest manifests/{{ quote(name) }}.json --milvus-uri builds/{{ quote(name) }}/milvus.db "${@:3}" -- {{ quote(query) }}

# nDCG@10, R@100 and RR@10 of a judged set in BEIR layout: BM25, vectors, both
eval dir *options: (install "pipeline")
    {{ python }} -m pipeline evaluate {{ quote(dir) }} "${@:2}"

# Measure queries against peers, and the stages against bare libraries
bench *options: (install "bench")
    {{ python }} -m bench.queries "$@"
    {{ python }} -m bench.stages

# One self-contained HTML page about a build: builds/NAME/report.html
report name="sample" *options: (install "bench")
    {{ python }} -m bench.report {{ quote(name) }} "${@:2}"

# Run the tests; options go to pytest
test *options: (install "dev")
    {{ python }} -m pytest "$@"

# Lint, types, imports, locks, spelling: cheapest first
check: (install "dev")
    {{ python }} -m ruff check .
    {{ python }} -m ruff format --check .
    {{ python }} scripts/guard.py
    {{ python }} -m scripts.published
    .venv/bin/hadolint Dockerfile
    {{ python }} -m codespell_lib
    .venv/bin/lint-imports
    {{ python }} -m mypy

# Public MCP suites against the server over builds/NAME (own installs under builds/acceptance; needs npm)
acceptance name="sample": (install "dev")
    {{ python }} scripts/acceptance.py {{ quote(name) }}

# Solve the dependency groups again into requirements/; --upgrade takes newer versions
lock *options: (install "dev")
    {{ python }} scripts/lock.py "$@"

# Write the generated pages of docs/ again
docs: (install "dev")
    {{ python }} -m docs.generate

# Build the serving image with builds/NAME inside, by docker, podman or buildah
image name="sample" *options:
    scripts/image.sh {{ quote(name) }} "${@:2}"

# Build the image and prove it, without a container engine or registry (root on Debian)
image-check: build-index
    scripts/image_check.sh

# Write the SBOM of the image's packages (CycloneDX) to FILE
sbom file: (install "dev")
    {{ python }} scripts/sbom.py {{ quote(file) }}

# Build and serve the sample through the real DashScope SDK against an emulator: no key, no network; --once to end
demo-dashscope *options: (install "dev")
    {{ python }} -m bench.demo_dashscope "$@"
