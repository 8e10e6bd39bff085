"""What the modules of this package share that are run with `python -m`.

The commands of the other packages have `model.command`, which nothing here imports.
"""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress


def run(main: Callable[[], object], program: str) -> int:
    """Run a command and return its exit code; an expected failure is one line.

    What it prints is UTF-8, whatever the terminal's settings say.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # it is None where it is closed
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        main()
        if sys.stdout is not None:
            sys.stdout.flush()
        return 0
    except BrokenPipeError:
        # The reader has enough (`| head -1`). Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{program}: {where}{error.strerror or error}")
    except ValueError as error:
        _say(f"{program}: {' '.join(str(error).split())}")
    return 2


def _say(message: str) -> None:
    """Print a line on stderr, its controls and escapes as what they are written as."""
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in message)
    if sys.stderr is not None:  # it is where it is closed
        with suppress(OSError):
            print("".join(shown), file=sys.stderr)
