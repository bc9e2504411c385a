from __future__ import annotations

import pytest
from tests.support.byte_tokenizer import byte_tokenizer

from headrace.engine.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("byte-tokenizer"))
