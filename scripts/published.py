"""Guard of what is published: every committed manifest agrees with its snapshot and with the code, or CI says why.

    python -m scripts.published              the cheap half: no model, no engine, a second
    python -m scripts.published --rebuilt    after `just build-index`: the committed manifests must be unchanged

What the manifest does not repeat of snapshot.json, such as `retrieved_at`, is compared with the commit that published
the manifest: CI needs the whole history for that.

Prints every difference and what to run, and exits 1; silent otherwise.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from manifests.collection import collection_facts
from manifests.contract import CollectionFacts, Manifest, TextVersions, read_manifest
from manifests.errors import IndexRefused, InputRefused
from manifests.texts import EMBED_TEXT_VERSION, SEARCH_TEXT_VERSION
from pipeline.snapshot import Snapshot, open_snapshot

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    """Exit code 0 when everything published is what it must be."""
    findings = rebuilt_findings(ROOT) if arguments == ["--rebuilt"] else all_findings(ROOT)
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


def rebuilt_findings(root: Path) -> list[str]:
    """The manifests that a build of this checkout has changed."""
    command = ["git", "diff", "--name-only", "-z", "--", "manifests/*.json"]
    changed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    return [
        f"{name} is not what snapshots/{Path(name).stem} and this code give: run `just build-index {Path(name).stem}`"
        f" and commit {name}"
        for name in changed
        if name
    ]


def all_findings(root: Path) -> list[str]:
    """Look at every snapshot and manifest that git tracks in the repository `root`; a user's own are no concern."""
    command = ["git", "ls-files", "-z", "snapshots/*/snapshot.json", "manifests/*.json"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    tracked = [Path(name) for name in listed if name]
    names = {path.parent.name if path.parts[0] == "snapshots" else path.stem for path in tracked}
    return [finding for name in sorted(names) for finding in findings_of(root, name)]


def findings_of(root: Path, name: str) -> Iterator[str]:
    """What is wrong with the published index `name`, each with what to run."""
    snapshot, manifest = root / "snapshots" / name, root / "manifests" / f"{name}.json"
    rebuild = f"run `just build-index {name}` and commit manifests/{name}.json"
    try:
        found = open_snapshot(snapshot) if snapshot.exists() else None
    except InputRefused as refusal:
        yield (
            f"snapshots/{name}: {refusal}\n  A snapshot is never edited: restore it with"
            f" `git checkout -- snapshots/{name}`, or make a new one with `.venv/bin/python -m pipeline fetch`"
            f" and {rebuild}"
        )
        return
    if not manifest.exists():
        yield f"manifests/{name}.json is absent, snapshots/{name} was never published: {rebuild}"
        return
    try:
        published = read_manifest(manifest)
    except IndexRefused as refusal:
        yield f"manifests/{name}.json: {refusal}\n  A manifest is never edited by hand: {rebuild}"
        return
    differing = [*snapshot_differences(published, found)] if found else []
    differing += code_differences(published)
    if differing:
        yield f"manifests/{name}.json is not what snapshot and code give: {rebuild}\n  " + "\n  ".join(differing)
    elif found and (commit := edited_since(root, name)):
        yield (
            f"snapshots/{name}/snapshot.json was edited after its manifest was published\n  A snapshot is never edited:"
            f" restore it with `git checkout {commit} -- snapshots/{name}/snapshot.json`, or make one of another name"
        )


def snapshot_differences(published: Manifest, snapshot: Snapshot) -> Iterator[str]:
    """Where the snapshot differs from the one that was published."""
    pinned = published.snapshot
    records = pinned.counts.records
    if records != snapshot.card.papers:
        yield f"snapshot papers: manifest {records}, snapshot {snapshot.card.papers}"
    found = {"sha256": snapshot.sha256, "file": snapshot.file} | {
        fact: getattr(snapshot.card, fact) for fact in ("name", "title", "source", "url", "licence")
    }
    for fact, value in found.items():
        if getattr(pinned, fact) != value:
            yield f"snapshot {fact}: manifest {getattr(pinned, fact)}, snapshot {value}"


def edited_since(root: Path, name: str) -> str | None:
    """The commit that published the manifest of today, where snapshot.json is another than it was there."""
    card, manifest = f"snapshots/{name}/snapshot.json", f"manifests/{name}.json"
    commit = said_by_git(root, "log", "-1", "--format=%h", "--", manifest)
    if not commit:
        return None  # nothing is committed yet
    changed = said_by_git(root, "diff", "--name-only", "--diff-filter=M", commit, "--", card, manifest)
    return commit if changed == card else None


def said_by_git(root: Path, *arguments: str) -> str:
    """The line that git prints; empty where it refuses, as in a repository without a commit."""
    done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
    return done.stdout.strip()


def code_differences(published: Manifest) -> Iterator[str]:
    """Where the collection or the texts that the code would build differ from the published ones."""
    texts = TextVersions(search=SEARCH_TEXT_VERSION, embed=EMBED_TEXT_VERSION)
    if texts != published.texts:
        yield f"text versions: manifest {published.texts}, code {texts}"
    code = collection_facts(published.corpus.content_sha256, published.texts, published.embedding)
    for part in CollectionFacts.model_fields:
        pinned, built = getattr(published.collection, part), getattr(code, part)
        if pinned == built:
            continue
        if not isinstance(pinned, list):
            yield f"collection {part}: manifest {pinned}, code {built}"
            continue
        yield from (f"collection {part}: manifest only {each}" for each in pinned if each not in built)
        yield from (f"collection {part}: code only {each}" for each in built if each not in pinned)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
