from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.live_front import LiveFront

from headrace.engine.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("byte-tokenizer"))


@pytest_asyncio.fixture
async def front(tokenizer: Tokenizer) -> AsyncIterator[LiveFront]:
    async with LiveFront(tokenizer) as made:
        yield made
