"""A declared shape with random weights: the engine without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from headrace import LLM, SamplingParams
from headrace.cache.layout import CacheLayout, cache_groups
from headrace.config import EngineConfig
from headrace.engine.build import load_engine
from headrace.engine.byte_tokenizer import byte_tokenizer
from headrace.engine.chat import ChatTemplate
from headrace.engine.process import EngineProcess
from headrace.engine.requests import build_requests
from headrace.errors import ConfigError
from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import build_decoder
from headrace.models.spec import ModelSpec
from headrace.plan import shapes
from headrace.plan.dtypes import Dtypes
from headrace.plan.shapes import FORMATS, SHAPES, declared_model
from headrace.plan.weight_memory import weight_bytes
from headrace.random_weights import make_weights
from headrace.runner.batch import Packer
from headrace.runner.page_tables import PageTables
from headrace.runner.pools import allocate_pools
from headrace.types import Row

SMALL = {"device": "cpu", "context": 256, "max_seqs": 2}


@pytest.mark.parametrize("name", [f"{name}:{format}" for name in SHAPES for format in FORMATS])
def test_a_declared_model_is_what_the_decoder_has(name: str):
    model = declared_model(name)
    with torch.device("meta"):
        decoder = build_decoder(model.spec, dtype=torch.bfloat16, device=torch.device("meta"), formats=model.formats)
    bytes_of = {n: p.numel() * p.element_size() for n, p in decoder.named_parameters()}
    assert sum(bytes_of.values()) == weight_bytes(model.weight_map, "bfloat16")
    assert {w.target for w in model.weight_map.weights} == bytes_of.keys()


def test_the_published_parameter_counts():
    def parameters(name: str) -> int:
        return sum(t.nbytes // 2 for t in declared_model(name).checkpoint.tensors.values())

    assert round(parameters("qwen3.8-27b") / 1e9, 2) == 27.32  # its text model and the multi-token head
    assert round(parameters("smollm2-135m") / 1e6, 1) == 134.5


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(random_weights="smollm2-135m:bf16", **SMALL) as engine:
        yield engine


def test_it_generates_and_the_weights_are_the_same_each_time(llm: LLM):
    params = SamplingParams(seed=1, max_tokens=8, logprobs=0, ignore_eos=True)
    (first,) = llm.generate("hello", params)
    assert first.prompt_tokens == 5 and len(first.tokens) == 8
    assert len(set(first.tokens)) > 1 and all(-20 < p.logprob < 0 for p in first.logprobs or ())
    with LLM(random_weights="smollm2-135m", **SMALL) as again:
        assert again.generate("hello", params) == [first]
    assert "random" in llm.info.model


async def test_a_process_of_its_own_serves_it(llm: LLM):
    config = EngineConfig(random_weights="smollm2-135m", **SMALL)
    tokenizer = byte_tokenizer()
    params = SamplingParams(seed=1, max_tokens=4, ignore_eos=True)
    engine = await EngineProcess.start("smollm2-135m", config, max_queue=4)
    try:
        (request,) = build_requests("r", tokenizer.encode("hello"), params, engine.info, tokenizer.eos_ids, 0.0)
        tokens = tuple([token async for event in engine.submit(request) for token in event.tokens])
    finally:
        await engine.close()
    assert tokens == llm.generate("hello", params)[0].tokens


def test_four_bits_serve_too():
    params = SamplingParams(seed=1, max_tokens=2, logprobs=0, ignore_eos=True)
    with LLM(random_weights="smollm2-135m:w4a16", **SMALL) as engine:
        (answer,) = engine.generate("hello", params)
    assert len(answer.tokens) == 2 and all(-20 < p.logprob < 0 for p in answer.logprobs or ())


def test_activations_keep_their_scale():
    spec = declared_model("smollm2-135m").spec
    decoder = build_decoder(spec, dtype=torch.float32, device=torch.device("cpu"))
    make_weights(decoder)
    norms = [p for n, p in decoder.named_parameters() if n.endswith("norm.weight")]
    assert all(abs(float(p.mean()) - 1) < 0.05 for p in norms)


@pytest.mark.parametrize("format", ["bf16", "w4a16-head8"])
def test_layers_add_little_to_the_residual_sum(format: str, monkeypatch: pytest.MonkeyPatch):
    small = {"vocab_size": 500, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 16, "head_dim": 32}
    monkeypatch.setattr(shapes, "SHAPES", {"small": {**SHAPES["qwen3.8-27b"], **small}})
    model = declared_model(f"small:{format}")
    decoder = build_decoder(model.spec, dtype=torch.float32, device=torch.device("cpu"), formats=model.formats)
    make_weights(decoder)
    sums: list[float] = []
    for layer in decoder.layers:
        layer.register_forward_hook(lambda module, given, out: sums.append(float(out[1].square().mean().sqrt())))
    with torch.inference_mode():
        decoder(*one_row(model.spec, 40))
    assert len(sums) == 16 and 1 < sums[-1] * 256**0.5 < 2 and all(a < b * 1.1 for a, b in pairwise(sums))


def one_row(spec: ModelSpec, tokens: int) -> tuple[Batch, Pools]:
    """A prompt, and a cache of just its size."""
    dtypes, cpu = Dtypes("float32", "float32", "float32"), torch.device("cpu")
    layout = CacheLayout(cache_groups(spec), tokens, (1,), 1)
    packer = Packer(PageTables(layout, tokens, cpu), tokens, 1, 1, cpu)
    prompt = tuple(torch.randint(0, spec.vocab_size, (tokens,), generator=torch.Generator().manual_seed(1)).tolist())
    return packer.pack((Row(0, 0, 0, prompt),), torch.zeros(1, dtype=torch.int64))[0], allocate_pools(spec, layout, dtypes, cpu)


def test_what_cannot_be_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no model is declared under the name 'qwen9'; there are qwen3.8-27b, smollm2-135m"):
        LLM(random_weights="qwen9")
    with pytest.raises(ConfigError, match="no weight format 'int1'"):
        LLM(random_weights="smollm2-135m:int1")
    with pytest.raises(ConfigError, match="exclude a model"):
        LLM(tmp_path, random_weights="smollm2-135m")
    with pytest.raises(ConfigError, match="no model is declared"):
        load_engine(tmp_path, EngineConfig(random_weights="qwen9"), None)


def test_bytes_are_tokens_and_back():
    tokenizer = byte_tokenizer()
    text = "héllo <|im_end|> 你好\n"
    ids = tokenizer.encode(text)
    assert len(ids) == len("héllo ".encode()) + 1 + len(" 你好\n".encode())
    assert tokenizer.decode(ids, skip_special=False) == text
    assert tokenizer.eos_ids == (2,) and tokenizer.special_ids == {0, 1, 2}
    template = ChatTemplate(tokenizer.chat_template or "", tokenizer)
    rendered = template.render([{"role": "user", "content": "hi"}])
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
