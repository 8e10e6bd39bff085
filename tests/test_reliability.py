"""docs/reliability.md names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_promise_names_tests_that_exist() -> None:
    promised = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", promised))
    written = {
        name
        for path in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.M)
    }
    assert len(named) > 30
    assert named <= written, named - written
    cases = re.findall(r"^\| (\d+) .*`test_", promised, re.M)
    assert cases == [str(number) for number in range(1, 27)]
