"""Run the commands of README.md: every line of every ```bash block, in order, from the repository's root.

A line that trains on real recordings runs where recordings are at hand (`data/nmnist`, or ../shared/data/nmnist, which
is linked there) and is named and left out elsewhere. `make test` is left to .ci/run, whose last step it is.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT / "data" / "nmnist"
ELSEWHERE = ROOT.parent / "shared" / "data" / "nmnist"


def commands(readme: str) -> list[str]:
    """Return the lines of all bash blocks, comments stripped, continued lines joined."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    stripped = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in lines]
    return [line for line in stripped if line]


def main() -> int:
    """Run them all; stop at the first that fails."""
    if not RECORDINGS.exists() and ELSEWHERE.is_dir():
        RECORDINGS.parent.mkdir(exist_ok=True)
        RECORDINGS.symlink_to(ELSEWHERE)
    environment = {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    found = commands((ROOT / "README.md").read_text())
    if not found:
        print("README.md has no ```bash block: nothing was checked", file=sys.stderr)
        return 1
    for command in found:
        if command == "make test" or command.startswith("git clone") or command.startswith("cd "):
            print(f"--- left out here: {command}", flush=True)
            continue
        if "dataset=nmnist" in command and not RECORDINGS.exists():
            print(f"--- left out, no recordings at {RECORDINGS}: {command}", flush=True)
            continue
        print(f"--- {command}", flush=True)
        begin = time.monotonic()
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=ROOT, env=environment, check=False)
        print(f"--- {time.monotonic() - begin:.0f} s", flush=True)
        if done.returncode:
            print(f"this command of README.md failed with exit code {done.returncode}: {command}", file=sys.stderr)
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
