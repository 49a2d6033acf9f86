"""`python tests/wheel.py [NAME]`: an installed wheel has all that it needs, is compiled if its name
says so, and runs the demo.

It imports nothing of the tests, and nothing of the checkout: it is run where the wheel is installed
and the rest is not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Tries the wheel; 0 if all is well."""
    import pgflow
    from pgflow.assets import is_compiled

    place = Path(pgflow.__file__).resolve()
    if Path(__file__).resolve().parents[1] in place.parents:
        print(f"{place} is the checkout, not a wheel")
        return 1
    wants_compiled = not sys.argv[1].endswith("-any.whl") if sys.argv[1:] else True
    if is_compiled() != wants_compiled:
        print(f"{place} is {'' if is_compiled() else 'not '}compiled")
        return 1
    command = shutil.which("pgflow", path=str(Path(sys.executable).parent))
    assert command is not None, "there is no command pgflow"
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [command, "demo", "--fast"], cwd=home, capture_output=True, text=True, check=False
        )
    print(done.stdout[-600:] + done.stderr[-2000:])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
