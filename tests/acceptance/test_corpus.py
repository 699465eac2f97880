"""The real conference, built by the real command with the local model, and everything its manifest pins."""

from __future__ import annotations

import json

import pytest

from manifests.contract import read_manifest
from tests.programs import Build, run_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.corpus, pytest.mark.timeout(3_600)]


def test_the_manifest_counts_what_the_conference_lists(corpus_build: Build) -> None:
    manifest = read_manifest(corpus_build.manifest)
    catalogue = manifest.catalogue

    assert corpus_build.result["papers"] == manifest.corpus.rows == 6_341
    assert (catalogue.spotlight, catalogue.oral, catalogue.without_abstract) == (536, 159, 661)
    assert catalogue.areas["Unspecified"] == 542
    assert len(catalogue.areas) == 78 + 1
    assert sum(catalogue.areas.values()) == sum(catalogue.paper_types.values()) == 6_341


def test_it_validates_and_its_rebuild_is_up_to_date(corpus_build: Build) -> None:
    places = ("--work", corpus_build.work, "--manifest", corpus_build.manifest)

    told = run_pipeline("validate", *places, "--json")

    verdict = json.loads(told.stdout)
    assert (told.returncode, verdict["ok"], verdict["differences"]) == (0, True, []), told.stderr
    assert verdict["digest"] == corpus_build.result["digest"]
