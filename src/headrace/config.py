"""The one tree of settings. Every field is documented here once; the command line and the docs table are generated from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float64", "float32", "float16", "bfloat16")
KV_DTYPES = ("auto", "bf16", "fp16", "fp8", "int8")
STATE_DTYPES = ("auto", "fp16", "fp32")
LOOPS = ("auto", "plain", "overlapped")
GRAPHS = ("auto", "on", "off")
SWITCH = ("on", "off")
KV_SCALES = ("token-head", "one")
VISION = ("auto", "on", "off")
SPECULATE = ("auto", "off", "lookup", "mtp", "dflash")


def setting(default: Any, help: str, *, choices: tuple[str, ...] = (), metavar: str = "") -> Any:
    """A documented field: `help` is one sentence for people, `choices` the words it takes, `metavar` its placeholder."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the engine: the same names as `LLM(...)` keywords and, with dashes, as command-line flags."""

    device: str = setting("auto", "Where the model runs; auto takes a GPU if there is one.", choices=DEVICES)
    dtype: str = setting(
        "auto", "Type of weights and activations; auto is the checkpoint's own on a GPU and float32 on a CPU.", choices=DTYPES
    )
    context: int | None = setting(
        None, "Longest sequence, prompt and answer together, in tokens; the model's own limit if not given, less if the cache "
        "cannot hold it.", metavar="N"
    )
    max_seqs: int | None = setting(
        None, "Most sequences that run at once; 64 if not given, fewer if their states would take over a quarter of the cache.",
        metavar="N"
    )
    chunk_tokens: int | None = setting(
        None, "Most prompt tokens computed in one step; longer prompts are cut into chunks. Tokens of sequences that decode "
        "count too, up to half of them. If not given, 2048 on Hopper and data-centre Blackwell GPUs, which take so many in a "
        "fifth of a second, and 1024 elsewhere.", metavar="N"
    )
    page_tokens: int = setting(16, "Tokens in a KV page.", metavar="N")
    kv_dtype: str = setting(
        "auto", "Type of cached keys and values; auto is the activations' type; fp8 and int8 have a scale per token and head.",
        choices=KV_DTYPES,
    )
    state_dtype: str = setting(
        "auto", "Type of the recurrent states; auto is fp32 with float32, float64 with float64, and fp16 otherwise.",
        choices=STATE_DTYPES,
    )
    memory_bytes: int | None = setting(None, "Device memory that headrace may use in all.", metavar="N")
    memory_fraction: float | None = setting(
        None, "Device memory that headrace may use, as a share of the whole (0.97 on a GPU if nothing is given).", metavar="F"
    )
    cuda_context_bytes: int = setting(
        641_728_512, "Of a GPU's memory, what the driver takes for a process that uses it, before any tensor: the default was "
        "measured on an H200, with PyTorch 2.11.", metavar="N"
    )
    cache_bytes: int | None = setting(
        None, "Memory for KV pages and state slots; on a CPU the default is what context x max-seqs needs, at most a quarter "
        "of the RAM.", metavar="N"
    )
    prefix_cache: str = setting(
        "on", "Whether what requests computed is kept in pages that nobody else needs, for later ones that begin alike.",
        choices=SWITCH
    )
    gpu_checkpoint_bytes: int | None = setting(
        None, "Of the cache, bytes for recurrent states kept where conversations resume; if not given, as many states as "
        "sequences, in an eighth of the cache at most.", metavar="N"
    )
    ram_cache_bytes: int = setting(
        0, "Host memory for what requests computed, beside the device's; pinned on a GPU.", metavar="N"
    )
    ssd_cache: str | None = setting(
        None, "Directory on an SSD for what requests computed: it outlives the engine, and servers may share it. Its way there "
        "and back is through host memory: without ram-cache-bytes, as much as a sequence takes.", metavar="DIR"
    )
    ssd_cache_bytes: int = setting(
        64 << 30, "Most bytes in that directory, of all models together; what was not used for longest goes.", metavar="N"
    )
    speculate: str = setting(
        "auto", "What drafts tokens that a step then verifies: lookup takes them from the sequence itself, mtp has the "
        "checkpoint's multi-token head make them, dflash a drafter of its own. auto is the drafter that is given or that the "
        "checkpoint brings along, on a GPU, with as many drafts as leave the context and the sequences that are asked for, "
        "or else 28,672 tokens and 4 sequences; where none do, off.",
        choices=SPECULATE
    )
    draft_tokens: int | None = setting(
        None, "Most drafts of a sequence in a step, of which there are as many as pay at the time, or none; the drafter's own "
        "number if not given.", metavar="N"
    )
    verify_tokens: int | None = setting(
        None, "Most drafts of a sequence that a step verifies with --speculate mtp or dflash: where its newest tokens stand in "
        "it earlier too, what followed there goes behind the drafter's own. As many as those if not given.", metavar="N"
    )
    drafter: str | None = setting(
        None, "Directory of the drafter for --speculate dflash; if not given, the folder drafter of the model's own, or for "
        "plan the published one.", metavar="DIR"
    )
    draft_vocabulary: int | None = setting(
        None, "Of --speculate mtp: drafts are among the tokens with the lowest ids alone, so many, a multiple of 128. Each "
        "takes less time then, since less of the model's head is read; rarer tokens are not drafted.", metavar="N",
    )
    loop: str = setting(
        "auto", "plain waits for each step before it plans the next; overlapped plans it meanwhile, and gives the same tokens. "
        "auto is overlapped on a GPU.", choices=LOOPS
    )
    graphs: str = setting(
        "auto", "Whether decode steps and short prompts are captured as CUDA graphs at start; auto is on with a GPU.",
        choices=GRAPHS,
    )
    wait_for_gpu: float = setting(
        0.0, "Seconds to wait at start for other processes to leave the GPU's memory; 0 refuses at once and names them.",
        metavar="SECONDS",
    )
    verify_fit: bool = setting(
        False, "At start, fill the cache to its last byte, run the largest steps there can be and say what that took, beside "
        "the plan, line by line; refuse to start if it is over 1 % more."
    )
    random_weights: str | None = setting(
        None, "Instead of a model, the named shape with random weights made on the device, for benchmarks.",
        metavar="NAME[:FORMAT]",
    )
    synthetic_acceptance: float | None = setting(
        None, "Instead of the model, a seeded coin accepts drafts, with this chance: for benchmarks, and only with "
        "--random-weights.", metavar="P"
    )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the HTTP server."""

    host: str = setting("127.0.0.1", "Address to listen on; any other than loopback needs an API key.")
    port: int = setting(8000, "Port to listen on; 0 takes a free one.", metavar="N")
    api_key: tuple[str, ...] = setting((), "A key that clients must send; may be given several times.", metavar="K")
    served_name: str | None = setting(None, "Name of the model in the API; the last part of its path if not given.")
    max_queue: int = setting(
        1024, "Most requests that wait beyond those that can run; more are answered 429.", metavar="N"
    )
    drain_s: float = setting(30.0, "Seconds that running requests are given to finish after SIGTERM.", metavar="S")
    max_body_bytes: int = setting(32 << 20, "Largest request body, in bytes; a larger one is answered 413.", metavar="N")
    chat_template: str | None = setting(None, "File with a Jinja chat template to use instead of the checkpoint's.",
                                        metavar="FILE")


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Settings of `headrace plan` beside the engine's. Those of what `serve` will do move to EngineConfig when it does."""

    gpu: str | None = setting(
        None, "Cards to plan for, by name and with commas: rtx3090, rtx4090, rtx5090, h200 and more; this machine's if not "
        "given.", metavar="NAME[,NAME...]",
    )
    vram_bytes: int | None = setting(None, "Memory of each card, instead of what the table says.", metavar="N")
    desktop_bytes: int = setting(0, "Memory that a desktop and other programs hold of each card.", metavar="N")
    users: int | None = setting(None, "Users at once: sequences that each have the whole context.", metavar="N")
    kv_scales: str = setting(
        "token-head", "Scales of 8-bit keys and values: one for each token and head, or one for all.", choices=KV_SCALES
    )
    vision: str = setting(
        "auto", "Whether a vision tower is planned, which serve leaves out so far; auto plans the checkpoint's where it costs "
        "neither what is asked for nor the drafter, and says what serve has without it.", choices=VISION,
    )


def from_settings(cls: type[Any], settings: dict[str, Any]) -> Any:
    """A config of class `cls` from keyword settings. Raises ConfigError for an unknown name or a word not among choices."""
    from headrace.errors import ConfigError

    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name, value in settings.items():
        if name not in fields:
            raise ConfigError(f"unknown setting {name!r}; the settings are {', '.join(fields)}")
        choices = fields[name].metadata["choices"]
        if choices and value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return cls(**settings)


Dtype = Literal["float64", "float32", "float16", "bfloat16"]
KvDtype = Literal["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8"]
"""Names that torch knows too."""
