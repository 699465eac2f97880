"""Write the SBOM of the serving image: CycloneDX over exactly the pins of requirements/serve.txt.

    python scripts/sbom.py FILE

It holds a timestamp, so it is made at a release and never committed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(target: Path) -> int:
    """Export through uv from a project whose only dependencies are the pins."""
    lock = (ROOT / "requirements" / "serve.txt").read_text(encoding="utf-8")
    pins = [pin.strip() for pin in re.findall(r"^([A-Za-z0-9][^\s\\]*==[^\\\n]*)", lock, re.MULTILINE)]
    with tempfile.TemporaryDirectory() as folder:
        dependencies = ", ".join(json.dumps(pin) for pin in pins)
        Path(folder, "pyproject.toml").write_text(
            '[project]\nname = "icml-paper-search"\nversion = "0"\nrequires-python = ">=3.11"\n'
            f"dependencies = [{dependencies}]\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "uv", "export", "--quiet", "--format", "cyclonedx1.5", "--project", folder]
        exported = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    target.write_text(exported, encoding="utf-8")
    print(f"{target}: {len(json.loads(exported)['components'])} components of {len(pins)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
