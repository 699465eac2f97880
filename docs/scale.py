"""docs/scale.md: what each size of corpus takes, by arithmetic from what was measured and what is stated.

The rate of the local model is read from stages.md, the memory of Lite from speed.md; the rest are constants. After a
new measurement, or with another constant, run `just docs`. `python -m pipeline plan SNAPSHOT` gives the exact figures
of one snapshot.
"""

from __future__ import annotations

import re
from math import ceil
from typing import NamedTuple

from docs.markdown import markdown_table
from manifests.collection import HNSW_PARAMS
from manifests.embedding.local import local_spec

SIZES = (6_000, 60_000, 600_000, 2_700_000)
DIMENSION = 1_024
FLOAT_BYTES = 4
LINKS_BYTES = 2 * HNSW_PARAMS["M"] * 4 * 1.1  # twice M links on the lowest level, a tenth more above it
TEXT_BYTES = 2_500  # of ICML 2026: 1,386 of stored fields and 1,127 of search text, the mean of its papers
RECORD_BYTES = 2_900  # the same fields as the server keeps them, by tracemalloc over Index.papers
POSTING_BYTES = 120 * 8  # distinct words of a paper, an id and a count each
SERVER_GB = 2  # Milvus with nothing loaded; an assumption
HEADROOM = 1.5  # segments being loaded, queries, the server itself
TOKENS = 250  # a title and an abstract: 1.6 million tokens for 6,341 papers
BATCH = 10
PRICE = 0.07  # US dollars for a million tokens of text-embedding-v4; ask your own console
QUOTAS = ((600, 300_000), (1_800, 1_200_000))
LITE_COPIES = 2  # of every vector: the rows' and the graph's
LITE_PAPERS_MAX = 20_000
STANDALONE_PAPERS_MAX = 1_000_000


class Lite(NamedTuple):
    """Memory of one engine and its client at two sizes, vectors of the local model: the bare rows of speed.md."""

    low: int
    low_gb: float
    high: int
    high_gb: float
    dimension: int
    measured: str


class LocalModel(NamedTuple):
    """How fast the packaged model embeds: its row of stages.md."""

    texts: int
    seconds: float
    cores: str
    measured: str


def scale_page(note: str, stages: str, speed: str) -> str:
    """The whole page, from the pages of measurements."""
    lite, model = lite_measured(speed), model_measured(stages)
    engines = [(f"{papers:,}", engine(papers), memory(papers, lite), disk(papers)) for papers in SIZES]
    times = [
        (f"{papers:,}", *(quota_time(papers, *quota) for quota in QUOTAS), local_time(papers, model), cost(papers))
        for papers in SIZES
    ]
    quotas = [f"DashScope at {requests:,} requests, {tokens:,} tokens a minute" for requests, tokens in QUOTAS]
    return TEXT.format(
        note=note,
        engines=markdown_table(("Papers", "Engine", "Memory of the engine", "Index on disk"), engines, right=(0,)),
        times=markdown_table(
            ("Papers", *quotas, f"Local model, {model.cores} cores", "DashScope cost"), times, right=(0,)
        ),
        vector=DIMENSION * FLOAT_BYTES,
        links=round(LINKS_BYTES),
        text=TEXT_BYTES,
        record=RECORD_BYTES,
        postings=POSTING_BYTES,
        headroom=HEADROOM,
        base=SERVER_GB,
        tokens=TOKENS,
        batch=BATCH,
        price=PRICE,
        local=round(model.texts / model.seconds),
        model=model,
        lite=lite,
        lite_wider=wider_bytes(lite),
        dimension=DIMENSION,
        lite_max=f"{LITE_PAPERS_MAX:,}",
    )


def lite_measured(speed: str) -> Lite:
    """The memory of the bare rows of speed.md, its smaller corpus first."""
    rows = re.findall(r"^## .*?([\d,]+) papers,.*?^\| bare (?:[^|]*\|){5} ([\d,]+) \|", speed, re.MULTILINE | re.DOTALL)
    (low, low_mb), (high, high_mb) = ((number(papers), number(megabytes)) for papers, megabytes in rows)
    return Lite(low, low_mb / 1e3, high, high_mb / 1e3, local_spec().dimension, conditions(speed, "milvus-lite")[1])


def model_measured(stages: str) -> LocalModel:
    """The texts and seconds of the row of stages.md that embeds by the local model."""
    ((texts, seconds),) = re.findall(
        r"^\| embed, local model +\| ([\d,]+) texts[^|]*\| +([\d.]+) ", stages, re.MULTILINE
    )
    return LocalModel(number(texts), float(seconds), *conditions(stages, "onnxruntime"))


def conditions(page: str, package: str) -> tuple[str, str]:
    """On how many cores a page was measured; the day and the version of `package`."""
    ((day, cores, version),) = re.findall(rf" on ([\d-]+): (\d+) cores, .*\b({package} [\d.]+\d)", page)
    return cores, f"{day}, {version}"


def number(digits: str) -> int:
    """Of `6,341`."""
    return int(digits.replace(",", ""))


def engine(papers: int) -> str:
    """What to run."""
    if papers <= LITE_PAPERS_MAX:
        return "Lite, in the image"
    return "Standalone" if papers <= STANDALONE_PAPERS_MAX else "Distributed, or Zilliz Cloud by URI"


def memory(papers: int, lite: Lite) -> str:
    """Of Lite between the two measured sizes, its longer vectors added; of a server by the sum of its parts."""
    if papers <= LITE_PAPERS_MAX:
        slope = (lite.high_gb - lite.low_gb) / (lite.high - lite.low)
        gigabytes = lite.low_gb + (papers - lite.low) * slope + papers * wider_bytes(lite) / 1e9
    else:
        paper = DIMENSION * FLOAT_BYTES + LINKS_BYTES + TEXT_BYTES + POSTING_BYTES
        gigabytes = SERVER_GB + papers * paper * HEADROOM / 1e9
    return f"{gigabytes:.1f} GB"


def wider_bytes(lite: Lite) -> int:
    """What a paper's longer vector adds to the measured memory."""
    return (DIMENSION - lite.dimension) * FLOAT_BYTES * LITE_COPIES


def disk(papers: int) -> str:
    """Vectors and texts, before compression."""
    gigabytes = papers * (DIMENSION * FLOAT_BYTES + LINKS_BYTES + TEXT_BYTES) / 1e9
    return f"{gigabytes:.2f} GB" if gigabytes < 1 else f"{gigabytes:.0f} GB"


def quota_time(papers: int, requests: int, tokens: int) -> str:
    """The longer of what the requests and what the tokens allow."""
    return duration(max(ceil(papers / BATCH) / requests, papers * TOKENS / tokens))


def local_time(papers: int, model: LocalModel) -> str:
    """At the measured rate of the packaged model."""
    return duration(papers * model.seconds / model.texts / 60)


def cost(papers: int) -> str:
    """In US dollars."""
    return f"${papers * TOKENS / 1e6 * PRICE:.2f}"


def duration(minutes: float) -> str:
    """In the unit that reads best."""
    for unit, size in (("days", 1_440), ("h", 60)):
        if minutes >= 2 * size:
            return f"{minutes / size:.1f} {unit}"
    return f"{minutes:.0f} min"


TEXT = """\
# Scale

{note}

One code path serves every engine: `--milvus-uri` (or `SERVE_MILVUS_URI`) is a `*.db` path for Lite and a URL for a
server. What changes is who holds the memory.

{engines}

Memory of a server: a paper is {vector:,} bytes of vector, {links:,} of HNSW links, about {text:,} of text (the mean of
ICML 2026) and {postings:,} of postings, times {headroom} for headroom, and {base} GB for Milvus itself (both assumed).
No server size was measured by us: use Milvus's own sizing tool before you buy one.

Memory of Lite was measured ([speed.md](speed.md): {lite.measured}, {lite.dimension} dimensions):
{lite.low_gb:.1f} GB at {lite.low:,} papers and {lite.high_gb:.1f} GB at {lite.high:,}; the table adds
{lite_wider:,} bytes a paper for {dimension:,} dimensions. Each further `--engines` costs as much again. Lite scores in
Python, so a query takes time in proportion to the corpus: past about {lite_max} papers or ten queries a second, take a
server.

## Time and money for the vectors

{times}

{tokens} tokens a paper, {batch} texts a request, ${price} for a million tokens, {local} texts a second locally
([stages.md](stages.md): {model.measured}). The quota row is the longer of
requests and tokens; tokens bind. Every vector is bought once: a rebuild costs what changed
([operations.md](operations.md)). The exact figures of one snapshot, without touching anything:

```sh
.venv/bin/python -m pipeline plan snapshots/NAME --provider dashscope \\
  --requests-per-minute 1800 --tokens-per-minute 1200000
```

## Lite

The default. `just build-index NAME` writes `builds/NAME`, `just image NAME` bakes it into an image. Two engines use two
cores:

```sh
just build-index NAME
just serve NAME --engines 2
```

## Standalone

`compose.yaml` starts Milvus and the server on one machine. Build into Milvus first, then start the server, which waits
for it and refuses anything that is not the manifest's collection:

```sh
docker compose up -d milvus
.venv/bin/python -m pipeline build snapshots/NAME --milvus-uri http://127.0.0.1:19530
INDEX=NAME docker compose up -d serve
```

The new collection stands beside the old one, so a running server is not disturbed by a build. The server holds the
records of its index: past some 200,000 papers put `MEMORY=8g`, say, before `docker compose up` (2g is the default).

## Distributed, Zilliz Cloud

The same two commands with the cluster's URL; the token comes from the environment only:

```sh
export MILVUS_TOKEN=…
.venv/bin/python -m pipeline build snapshots/NAME --provider dashscope --milvus-uri https://CLUSTER.example.org
just serve NAME --milvus-uri https://CLUSTER.example.org
```

At 2.7 million papers the load stage stays in bounded memory (the snapshot is read as a stream); the server's start
compares every stored paper with the manifest, so it needs the time to read them once and the memory to hold their
fields (about {record:,} bytes each as Python objects, measured on ICML 2026).
"""
