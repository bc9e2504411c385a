"""Reading a checkpoint's configuration: typed fields, and errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import CheckpointError
from headrace.models.spec import RopeSpec

MAX_LAYERS = 4096


class Fields:
    """The fields of one mapping in config.json; `path` is how errors call it ("" or "text_config.")."""

    def __init__(self, config: Mapping[str, Any], path: str = "") -> None:
        self._config, self._path = config, path

    def get(self, name: str) -> Any:
        """The raw value; None when it is absent or null."""
        return self._config.get(name)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1, of 64 bits."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**63:
            raise self.error(name, "must be a positive whole number")
        return value

    def layer_count(self, name: str) -> int:
        """A whole number from 1 to MAX_LAYERS: as many layers are listed before their tensors are looked for."""
        value = self.count(name)
        if value > MAX_LAYERS:
            raise self.error(name, f"must be at most {MAX_LAYERS}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.error(name, "must be a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def mapping(self, name: str) -> Fields:
        """A nested mapping; empty when absent."""
        value = self.get(name)
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            raise self.error(name, "must be a mapping")
        return Fields(value, f"{self._path}{name}.")

    def choices(self, name: str, allowed: Sequence[str]) -> tuple[str, ...] | None:
        """A list of words, each among `allowed`; None when absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(word in allowed for word in value):
            raise self.error(name, f"must be a list of {', '.join(allowed)}")
        return tuple(value)

    def require(self, name: str, default: Any, *supported: Any) -> None:
        """Refuse a field whose value (default if absent) is not one that the decoder does."""
        value = self.get(name)
        if (default if value is None else value) not in supported:
            words = " or ".join(repr(s) for s in supported)
            raise self.error(name, f"is not supported; headrace does {words}")

    def error(self, name: str, rule: str) -> CheckpointError:
        found = f"is {self.get(name)!r}, which" if self.get(name) is not None else "is missing and"
        return CheckpointError(f"config field '{self._path}{name}' {found} {rule}")


def rope(fields: Fields, head_dim: int, *, partial: float = 1.0, partial_allowed: bool = False) -> RopeSpec:
    """The rotary embedding, in the spelling of transformers 5 (rope_parameters) or 4 (rope_theta, rope_scaling).

    partial: share of the head that is rotated when the configuration does not say.
    """
    name = "rope_scaling" if fields.get("rope_scaling") is not None else "rope_parameters"
    inner = fields.mapping(name)
    factor = inner.get("partial_rotary_factor")
    share = (inner if factor is not None else fields).number("partial_rotary_factor", partial)
    if not partial_allowed:
        (inner if factor is not None else fields).require("partial_rotary_factor", 1.0, 1.0)
    dims = int(head_dim * share)
    if dims < 2 or dims % 2 or dims > head_dim:
        raise CheckpointError(f"config field 'partial_rotary_factor' makes {dims} rotary dimensions of a {head_dim}-wide head")
    theta = (inner if inner.get("rope_theta") is not None else fields).number("rope_theta", 10_000.0)
    kind = "rope_type" if inner.get("rope_type") is not None else "type"
    inner.require(kind, "default", "default", "linear", "llama3")
    scaling = inner.get(kind)
    if scaling == "linear":
        return RopeSpec(theta, dims, "linear", inner.number("factor"))
    if scaling == "llama3":
        low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
        if high <= low:
            raise inner.error("high_freq_factor", f"must be above low_freq_factor, {low}")
        context = inner.get("original_max_position_embeddings") is not None
        original = inner.count("original_max_position_embeddings") if context else fields.count("max_position_embeddings")
        return RopeSpec(theta, dims, "llama3", inner.number("factor"), low, high, original)
    return RopeSpec(theta, dims)


def head_counts(fields: Fields, kv_default: int | None = None) -> tuple[int, int]:
    """(query heads, key heads); absent key heads are kv_default, null or no default means as many as query heads."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", kv_default or heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"must divide num_attention_heads, {heads}")
    return heads, kv_heads
