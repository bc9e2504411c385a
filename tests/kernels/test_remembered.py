from __future__ import annotations

import pytest

from headrace.kernels import remembered as module
from headrace.kernels.remembered import remembered


def test_the_same_question_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    @remembered
    def choose(rows: int, formats: dict[str, int], *, gated: bool = False) -> tuple[int, int, bool]:
        """Of a shape."""
        asked.append((rows, dict(formats), gated))
        return rows, formats["BITS"], gated

    for _ in range(2):
        assert choose(3, {"BITS": 4}) == (3, 4, False) and choose(3, {"BITS": 8}) == (3, 8, False)
        assert choose(3, {"BITS": 4}, gated=True) == (3, 4, True) and choose(4, {"BITS": 4}) == (4, 4, False)
    assert len(asked) == 4 and choose.__doc__ == "Of a shape."
    monkeypatch.setattr(module, "_MOST", 4)
    assert choose(5, {"BITS": 4}) == (5, 4, False) and choose(3, {"BITS": 4}) == (3, 4, False)
    assert len(asked) == 6
