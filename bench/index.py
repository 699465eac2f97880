"""The index stage against a bare pymilvus loop that inserts the same rows, flushes and builds the same indexes.

    python -m bench.index [--work builds/NAME] [--runs 3]

Without --work it takes snapshots/sample repeated to 6,000 rows. Both write one Milvus Lite folder; vectors are the same
deterministic unit vectors. The runs alternate; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from milvus_lite.server_manager import server_manager_instance
from pymilvus import DataType, Function, FunctionType, MilvusClient

from manifests.artifact import Artifact
from manifests.collection import BM25_PARAMS, DENSE, FIELDS, HNSW_PARAMS, KEY, SEARCH_TEXT, SPARSE
from manifests.collection import content_sha256, ids_sha256, paper_digest
from manifests.contract import CorpusFacts, Manifest
from manifests.embedding.local import local_spec
from manifests.embedding.spec import Vectors
from pipeline.corpus import Corpus, read_corpus, tabulate
from pipeline.index import INSERT_ROWS, Target, index
from pipeline.progress import silent
from pipeline.publish import draft
from pipeline.snapshot import open_snapshot

RATIO_MAX = 1.2
ROWS = 6_000
DIMENSION = 384
