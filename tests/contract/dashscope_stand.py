"""What the tests of the DashScope adapter stand on: an adapter over the emulated service."""

from __future__ import annotations

from pathlib import Path

from bench.emulator import Emulator
from manifests.embedding.dashscope import DashScopeEmbedder, dashscope_spec, ledger_account
from manifests.ledger import Ledger, Limits

KEY = "sk-3f9c2d81a7e64b05secret"
TEXTS = ["attention over graphs", "diffusion of molecules", "bandits with regret"]


def opened(service: Emulator, folder: Path, model: str = "text-embedding-v4", **options) -> DashScopeEmbedder:
    key = options.pop("api_key", KEY)
    base_url = options.pop("base_url", service.base_url)
    limits = options.pop("limits", Limits(100_000, 100_000_000))
    ledger = Ledger(folder / "ledger.db", ledger_account(base_url, model), limits)
    return DashScopeEmbedder(dashscope_spec(model), api_key=key, ledger=ledger, base_url=base_url, **options)
