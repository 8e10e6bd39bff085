"""Parts of a benchmark that run in processes of their own."""

import json
import subprocess
import sys
from typing import Any


def figures_of(module: str, *flags: str) -> Any:
    """Run a module; return what the last line that it prints holds, as JSON.

    Raises `ValueError` where it fails; it has said why on stderr.
    """
    command = [sys.executable, "-m", module, *flags]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if ran.returncode:
        raise ValueError(f"{module} {' '.join(flags)} failed, with {ran.returncode}")
    return json.loads(ran.stdout.splitlines()[-1])
