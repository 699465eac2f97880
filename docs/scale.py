"""docs/scale.md: what each size of corpus takes, by arithmetic from constants that were measured or are stated.

Change a constant, run `just docs`. `python -m pipeline plan SNAPSHOT` gives the exact figures of one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

SIZES = (6_000, 60_000, 600_000, 2_700_000)
DIMENSION = 1_024
FLOAT_BYTES = 4
LINKS_BYTES = 2 * 32 * 4 * 1.1  # HNSW with M = 32: twice as many links on the lowest level, a tenth more above it
TEXT_BYTES = 4_000  # the stored fields and the search text of a paper
POSTING_BYTES = 120 * 8  # distinct words of a paper, an id and a count each
SERVER_GB = 2  # Milvus with nothing loaded; an assumption
HEADROOM = 1.5  # segments being loaded, queries, the server itself
TOKENS = 250  # a title and an abstract: 1.6 million tokens for 6,341 papers
BATCH = 10
PRICE = 0.07  # US dollars for a million tokens of text-embedding-v4; ask your own console
QUOTAS = ((600, 300_000), (1_800, 1_200_000))
LOCAL_TEXTS_S = 42  # measured: all-MiniLM-L6-v2 as int8 on two cores
LOCAL_MEASURED = "300 in 7.1 s on 2026-11-30, onnxruntime 1.32.0: [stages.md](stages.md)"
LITE_GB = ((6_341, 0.4), (50_000, 2.3))  # measured: the bare row of speed.md, one engine and its client
LITE_DIMENSION = 384
LITE_MEASURED = f"2026-11-30, milvus-lite 3.2.2, {LITE_DIMENSION} dimensions: [speed.md](speed.md)"
LITE_COPIES = 2  # of every vector: the rows' and the graph's
LITE_PAPERS_MAX = 20_000
STANDALONE_PAPERS_MAX = 1_000_000


def scale_page(note: str, table: Callable[..., str]) -> str:
    """The whole page; `table` draws a Markdown table from a header and rows."""
    engines = [(f"{papers:,}", engine(papers), memory(papers), disk(papers)) for papers in SIZES]
    times = [
        (f"{papers:,}", *(quota_time(papers, *quota) for quota in QUOTAS), local_time(papers), cost(papers))
        for papers in SIZES
    ]
    quotas = [f"DashScope at {requests:,} requests, {tokens:,} tokens a minute" for requests, tokens in QUOTAS]
    return TEXT.format(
        note=note,
        engines=table(("Papers", "Engine", "Memory of the engine", "Index on disk"), engines, right=(0,)),
        times=table(("Papers", *quotas, "Local model, 2 cores", "DashScope cost"), times, right=(0,)),
        vector=DIMENSION * FLOAT_BYTES,
        links=round(LINKS_BYTES),
        text=TEXT_BYTES,
        postings=POSTING_BYTES,
        headroom=HEADROOM,
        base=SERVER_GB,
        tokens=TOKENS,
        batch=BATCH,
        price=PRICE,
        local=LOCAL_TEXTS_S,
        local_measured=LOCAL_MEASURED,
        lite_measured=LITE_MEASURED,
        lite_wider=(DIMENSION - LITE_DIMENSION) * FLOAT_BYTES * LITE_COPIES,
        dimension=DIMENSION,
        lite=f"{LITE_GB[0][1]} GB at {LITE_GB[0][0]:,} papers and {LITE_GB[1][1]} GB at {LITE_GB[1][0]:,}",
        lite_max=f"{LITE_PAPERS_MAX:,}",
    )


def engine(papers: int) -> str:
    """What to run."""
    if papers <= LITE_PAPERS_MAX:
        return "Lite, in the image"
    return "Standalone" if papers <= STANDALONE_PAPERS_MAX else "Distributed, or Zilliz Cloud by URI"


def memory(papers: int) -> str:
    """Of Lite between the two measured sizes, its longer vectors added; of a server by the sum of its parts."""
    if papers <= LITE_PAPERS_MAX:
        (low, low_gb), (high, high_gb) = LITE_GB
        wider = papers * (DIMENSION - LITE_DIMENSION) * FLOAT_BYTES * LITE_COPIES / 1e9
        gigabytes = low_gb + (papers - low) * (high_gb - low_gb) / (high - low) + wider
    else:
        paper = DIMENSION * FLOAT_BYTES + LINKS_BYTES + TEXT_BYTES + POSTING_BYTES
        gigabytes = SERVER_GB + papers * paper * HEADROOM / 1e9
    return f"{gigabytes:.1f} GB"


def disk(papers: int) -> str:
    """Vectors and texts, before compression."""
    gigabytes = papers * (DIMENSION * FLOAT_BYTES + LINKS_BYTES + TEXT_BYTES) / 1e9
    return f"{gigabytes:.2f} GB" if gigabytes < 1 else f"{gigabytes:.0f} GB"


def quota_time(papers: int, requests: int, tokens: int) -> str:
    """The longer of what the requests and what the tokens allow."""
    return duration(max(ceil(papers / BATCH) / requests, papers * TOKENS / tokens))


def local_time(papers: int) -> str:
    """At the measured rate of the packaged model."""
    return duration(papers / LOCAL_TEXTS_S / 60)


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

Memory of a server: a paper is {vector:,} bytes of vector, {links:,} of HNSW links, about {text:,} of text and
{postings:,} of postings, times {headroom} for headroom, and {base} GB for Milvus itself (both assumed). No server size
was measured by us: use Milvus's own sizing tool before you buy one.

Memory of Lite was measured ({lite_measured}): {lite};
the table adds {lite_wider:,} bytes a paper for {dimension:,} dimensions. Each
further `--engines` costs as much again. Lite scores in Python, so a query takes time in proportion to the corpus: past
about {lite_max} papers or ten queries a second, take a server.

## Time and money for the vectors

{times}

{tokens} tokens a paper, {batch} texts a request, ${price} for a million tokens, {local} texts a second locally
({local_measured}). The quota row is the longer of
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
fields (about {text:,} bytes each).
"""
