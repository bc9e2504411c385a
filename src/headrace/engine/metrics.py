"""Prometheus metrics, counted in the front; gauges and totals of the engine are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.registry import Collector

from headrace.types import RESTORE_BUCKETS_S, EngineStats

__all__ = ["CONTENT_TYPE", "Metrics"]

_GAUGES = (
    ("requests_running", "Requests that hold a slot."),
    ("requests_waiting", "Requests that wait for a slot."),
    ("kv_pages_used", "KV pages in use."),
    ("kv_pages_total", "KV pages that there are."),
    ("kv_pages_cached", "KV pages that are kept for later requests."),
    ("ssd_waiting", "Entries of the prefix cache that wait to be written to SSD."),
    ("checkpoints_used", "States that are kept for later requests."),
    ("checkpoints_total", "States that there is room for beside those of sequences."),
    ("slots_used", "State slots in use."),
    ("slots_total", "State slots that there are."),
    ("draft_tokens_chosen", "Drafts of all sequences in the last step."),
    ("draft_gain", "What drafts are expected to add to the tokens a second: 0.5 is half as much more."),
    ("draft_break_even", "The least chance of a draft to be accepted with which drafts pay, with as many sequences as now."),
)
_COUNTERS = (
    ("steps", "steps", "Steps that the engine has run."),
    ("preemptions", "preemptions_total", "Requests that lost their slot and were computed again."),
    ("prompt_tokens", "prompt_tokens_total", "Prompt tokens of admitted requests."),
    ("generation_tokens", "generation_tokens_total", "Tokens generated."),
    ("cached_tokens", "cached_tokens_total", "Prompt tokens that came from the prefix cache."),
    ("prefix_hits", "prefix_hits_total", "Requests whose prompts began with something cached. All others are misses."),
    ("ssd_read_bytes", "ssd_read_bytes_total", "Bytes of the prefix cache that were read from SSD."),
    ("ssd_written_bytes", "ssd_written_bytes_total", "Bytes of the prefix cache that were written to SSD."),
)
_BY_REASON = (
    ("prefix_misses", "prefix_misses", "Requests whose prompts began with nothing cached, by the reason."),
    ("prefix_short_hits", "prefix_short", "Of the hits, those that might have been longer, by the reason."),
    ("ssd_misses", "ssd_misses", "Entries of the prefix cache that could not be read from SSD, by the reason."),
    ("ssd_dropped", "ssd_dropped", "Entries of the prefix cache that were not written to SSD, by the reason."),
)
_FIRST_TOKEN_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 180)
_BETWEEN_TOKENS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_REQUEST_S = (0.1, 0.3, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class _EngineCollector(Collector):
    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for field, text in _GAUGES:
            yield GaugeMetricFamily(f"headrace_{field}", text, value=getattr(stats, field))
        for name, field, text in _COUNTERS:
            yield CounterMetricFamily(f"headrace_{name}", text, value=getattr(stats, field))
        yield _by_position("drafted", "Drafts verified, by their number in a row of them.", stats.drafted)
        yield _by_position("accepted", "Drafts accepted, by their number in a row of them.", stats.accepted)
        for name, field, text in _BY_REASON:
            yield _by_reason(name, text, getattr(stats, field))
        yield _cached_bytes(stats)
        yield _restores(stats)
        yield _restore_times(stats)


def _by_position(name: str, text: str, counts: Sequence[int]) -> Metric:
    family = CounterMetricFamily(f"headrace_{name}_tokens", text, labels=("position",))
    for position, count in enumerate(counts, 1):
        family.add_metric((str(position),), count)
    return family


def _by_reason(name: str, text: str, counts: tuple[tuple[str, int], ...]) -> Metric:
    family = CounterMetricFamily(f"headrace_{name}", text, labels=("reason",))
    for reason, count in counts:
        family.add_metric((reason,), count)
    return family


def _restores(stats: EngineStats) -> Metric:
    text = "Beginnings that came back from a tier, after preemptions too; what is on SSD comes by way of host memory."
    family = CounterMetricFamily("headrace_prefix_restores", text, labels=("tier",))
    family.add_metric(("host",), stats.restores_total)
    family.add_metric(("ssd",), stats.ssd_hits_total)
    return family


def _restore_times(stats: EngineStats) -> Metric:
    text = "Seconds that copies back took: from host memory to the device, from SSD to host memory."
    family = HistogramMetricFamily("headrace_prefix_restore_seconds", text, labels=("tier",))
    for each in stats.restore_times:
        bounds = (*map(str, RESTORE_BUCKETS_S), "+Inf")
        family.add_metric((each.tier,), list(zip(bounds, accumulate(each.counts), strict=True)), each.sum_s)
    return family


def _cached_bytes(stats: EngineStats) -> Metric:
    text = "Bytes that are kept for later requests, by where and what."
    family = GaugeMetricFamily("headrace_prefix_bytes", text, labels=("tier", "kind"))
    family.add_metric(("device", "pages"), stats.kv_cached_bytes)
    family.add_metric(("device", "checkpoints"), stats.checkpoint_bytes)
    family.add_metric(("host", "pages"), stats.host_pages_bytes)
    family.add_metric(("host", "checkpoints"), stats.host_checkpoint_bytes)
    family.add_metric(("ssd", "entries"), stats.ssd_bytes)
    return family


class Metrics:
    """One server's metrics, in a registry of their own. `stats` is `Engine.stats`."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats))
        self._first_token = Histogram("headrace_time_to_first_token_seconds", "From a request's arrival to its first token.",
                                      buckets=_FIRST_TOKEN_S, registry=self._registry)
        self._between_tokens = Histogram("headrace_inter_token_latency_seconds", "Between tokens of a request: of those that "
                                         "come together each has its share.", buckets=_BETWEEN_TOKENS_S,
                                         registry=self._registry)
        self._requests = Histogram("headrace_request_latency_seconds", "From a request's arrival to its end.",
                                   buckets=_REQUEST_S, registry=self._registry)
        self._finished = Counter("headrace_requests_finished", "Requests that have ended, by what ended them.", ("reason",),
                                 registry=self._registry)

    def first_token(self, waited_s: float) -> None:
        self._first_token.observe(waited_s)

    def tokens(self, count: int, waited_s: float) -> None:
        """`count` tokens that came together, `waited_s` after those before them: each has its share of that, so that the
        histogram counts all tokens but the first, and its sum is the time that they took.
        """
        for _ in range(count):
            self._between_tokens.observe(waited_s / count)

    def finished(self, reason: str, took_s: float) -> None:
        self._finished.labels(reason).inc()
        self._requests.observe(took_s)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)
