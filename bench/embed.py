"""Stage embed with the local model, beside bare onnxruntime loops over the same texts, in one run.

    python -m bench.embed [--texts 300] [--seed 2026] [--rounds 2]

Two bare loops: `padded` is what everybody writes (batches of 32 sorted by length, padded, all cores in one call),
`alone` is what the embedder does (a text a call, a core a call). Neither counts, checks or stores anything; the stage
does. Limit: the stage takes at most 1.2 times the faster loop. Exits 1 when it takes more.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
from tokenizers import Tokenizer

from bench.measured import Measured, timed, told
from bench.synthetic import SEED, WORDS
from manifests.embedding.local import TOKENS_MAX, LocalEmbedder, cores_available, local_spec
from manifests.embedding.local_files import model_files
from manifests.texts import embed_text, text_sha256
from pipeline.embed import Policy, embed
from pipeline.embedding_store import EmbeddingStore

RATIO_MAX = 1.2
BATCH = 32
TEXTS, ROUNDS = 300, 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return told(measured(**vars(parser.parse_args())))


def measured(texts: int = TEXTS, seed: int = SEED, rounds: int = ROUNDS) -> Measured:
    """All three in turn; the best of the rounds."""
    papers = synthetic_papers(texts, random.Random(seed))
    embed_texts = [embed_text(title, abstract) for title, abstract in papers]
    ours: list[float] = []
    bare: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(rounds):
        for name, loop in LOOPS.items():
            bare[name].append(timed(partial(loop, embed_texts)))
        with tempfile.TemporaryDirectory(prefix="bench-embed-") as folder:
            ours.append(timed(partial(stage, papers, Path(folder))))
    best = {name: min(seconds) for name, seconds in bare.items()}
    return Measured(
        stage="embed, local model",
        size=f"{texts:,} texts, best of {rounds}",
        seconds=min(ours),
        bare="onnxruntime, the faster of " + ", ".join(f"{name} ({seconds:.2f})" for name, seconds in best.items()),
        bare_s=min(best.values()),
        ratio_max=RATIO_MAX,
    )


def stage(papers: list[tuple[str, str]], folder: Path) -> None:
    corpus = folder / "papers.parquet"
    hashes = [text_sha256(embed_text(title, abstract)) for title, abstract in papers]
    ids = [f"id-{number}" for number in range(len(papers))]
    titles, abstracts = zip(*papers, strict=True)
    pl.DataFrame({"paper_id": ids, "title": titles, "abstract": abstracts, "text_sha256": hashes}).write_parquet(corpus)
    with EmbeddingStore(folder / "store", local_spec()) as store:
        result = embed(corpus, store, LocalEmbedder(local_spec()), Policy())
    if result.embedded != len(papers):
        raise SystemExit(f"the stage embedded {result.embedded} of {len(papers)} texts")


def padded_loop(texts: list[str]) -> None:
    tokenizer, session = loaded(cores_available())
    encodings = sorted(tokenizer.encode_batch_fast(texts), key=lambda encoding: len(encoding.ids))
    for start in range(0, len(encodings), BATCH):
        batch = encodings[start : start + BATCH]
        ids = np.zeros((len(batch), len(batch[-1].ids)), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(batch):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = session.run(None, feed)[0]
        vectors = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)


def alone_loop(texts: list[str]) -> None:
    tokenizer, session = loaded(1)

    def vector(encoding: Any) -> Any:
        ids = np.array([encoding.ids], dtype=np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = session.run(None, feed)[0][0].mean(axis=0)
        return states / np.linalg.norm(states)

    with ThreadPoolExecutor(cores_available()) as cores:
        list(cores.map(vector, tokenizer.encode_batch_fast(texts)))


def loaded(threads: int) -> tuple[Any, Any]:
    files = model_files(None)
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    tokenizer.enable_truncation(TOKENS_MAX)
    tokenizer.no_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return tokenizer, onnxruntime.InferenceSession(str(files.model), options, providers=["CPUExecutionProvider"])


LOOPS = {"padded": padded_loop, "alone": alone_loop}


def synthetic_papers(count: int, chance: random.Random) -> list[tuple[str, str]]:
    """Titles and abstracts of the length of real ones; one in ten without an abstract."""
    papers, words = [], WORDS.split()
    for number in range(count):
        length = 0 if number % 10 == 0 else max(40, int(chance.gauss(170, 45)))
        title = f"{' '.join(chance.choices(words, k=9))} {number}"
        papers.append((title, " ".join(chance.choices(words, k=length))))
    return papers


if __name__ == "__main__":
    sys.exit(main())
