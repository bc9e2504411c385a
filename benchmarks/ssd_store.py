"""What the SSD tier's file store costs: `python benchmarks/ssd_store.py DIRECTORY`, on the disk that the directory is on.

Rates of entries written and read through the store, each beside the same bytes moved by plain system calls in the same order
(the floor), in rounds that take turns; medians. Read cold: after the kernel was told to drop the file from its page cache. Then
the start-up scan of many entries (files without content, names and inodes in memory), and what the engine's loop pays.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.ssd import EntryKey, Kind, SsdStore, TokenChain, chain_root
from headrace.cache.ssd import SsdSettings as StoreSettings
from headrace.cache.ssd.directory import SHARDS
from headrace.cache.ssd.host_entry import HostEntry
from headrace.cache.ssd.pieces import PIECE_BYTES
from headrace.scheduler.ssd_tier import SsdSettings, SsdTier

MIB = 1 << 20


def timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def worked(work: Callable[[], object]) -> float:
    """Without the time that others had the core."""
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


@contextmanager
def directory_below(root: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def checksums() -> None:
    data = memoryview(os.urandom(PIECE_BYTES))
    ways: dict[str, Callable[[memoryview], object]] = {
        "crc32": zlib.crc32, "adler32": zlib.adler32, "sha256": lambda d: hashlib.sha256(d).digest(),
        "blake2b": lambda d: hashlib.blake2b(d).digest(),
    }
    for name, way in ways.items():
        seconds = median(timed(lambda way=way: way(data)) for _ in range(200))  # type: ignore[misc]
        print(f"checksum {name:<8} {PIECE_BYTES / seconds / 1e9:6.2f} GB/s on one thread, a piece at a time")


def plain_write(path: Path, data: memoryview, sync: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    for at in range(0, len(data), 4 * MIB):
        os.pwrite(fd, data[at : at + 4 * MIB], at)
    if sync:
        os.fdatasync(fd)
    os.close(fd)


def plain_read(path: Path, into: memoryview) -> None:
    fd = os.open(path, os.O_RDONLY)
    for at in range(0, len(into), 4 * MIB):
        os.preadv(fd, [into[at : at + 4 * MIB]], at)
    os.close(fd)


def drop_pages(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def keys(count: int) -> list[EntryKey]:
    return [EntryKey(Kind.PAGES, 0, 16, secrets.token_bytes(8), secrets.token_bytes(32)) for _ in range(count)]


def rate(nbytes: int, seconds: Sequence[float]) -> str:
    return f"{nbytes / median(seconds) / 1e9:5.2f} GB/s"


def writes(root: Path, entry_bytes: int, count: int, rounds: int) -> None:
    data = memoryview(os.urandom(entry_bytes))
    for sync in (True, False):
        ours, plain = [], []
        for _ in range(rounds):
            with directory_below(root) as below:
                plain.append(timed(lambda b=below, s=sync: [plain_write(b / str(i), data, s) for i in range(count)]))  # type: ignore[misc]
            with directory_below(root) as below:
                store = SsdStore(StoreSettings(below, 1 << 40, queue_bytes=1 << 40, sync=sync))
                entries = keys(count)
                ours.append(timed(lambda s=store, e=entries: ([s.put(k, [data]) for k in e], s.flush(600))))  # type: ignore[misc]
                assert store.stats().stored == count
                store.close()
        print(f"write {'synced' if sync else 'to the page cache':<18} {rate(count * entry_bytes, ours)}  floor "
              f"{rate(count * entry_bytes, plain)}")


def reads(root: Path, entry_bytes: int, count: int, rounds: int) -> None:
    data, into = memoryview(os.urandom(entry_bytes)), memoryview(bytearray(entry_bytes))
    with directory_below(root) as below:
        entries = keys(count)
        stores = {threads: SsdStore(StoreSettings(below, 1 << 40, 1 << 40, read_threads=threads)) for threads in (1, 4)}
        for key in entries:
            assert stores[1].put(key, [data]).result()
        paths = [next(below.rglob(key.name)) for key in entries]
        for cold in (True, False):
            seconds: dict[str, list[float]] = {"floor": [], "1": [], "4": []}
            for _ in range(rounds):
                for name in seconds:
                    drop_pages(below) if cold else None
                    if name == "floor":
                        seconds[name].append(timed(lambda: [plain_read(path, into) for path in paths]))
                    else:
                        store = stores[int(name)]
                        seconds[name].append(timed(lambda s=store: [s.get(key, [into]) for key in entries]))  # type: ignore[misc]
            assert all(store.stats().misses == {} for store in stores.values())
            told = "  ".join(f"{name} {rate(count * entry_bytes, of)}" for name, of in seconds.items())
            print(f"read {'cold' if cold else 'from the page cache':<19} by threads: {told}")


def touch(directory: Path, entries: Sequence[EntryKey]) -> None:
    """Files of the entries, of a size but without content."""
    for key in entries:
        fd = os.open(directory / "entries" / f"{key.digest[0]:02x}" / key.name, os.O_CREAT | os.O_WRONLY, 0o600)
        os.truncate(fd, MIB)
        os.close(fd)


def scan(root: Path, count: int) -> None:
    with directory_below(root) as below:
        SsdStore(StoreSettings(below, 1 << 50)).close()
        entries = keys(count)
        touch(below, entries)
        stores: list[SsdStore] = []
        seconds = timed(lambda: stores.append(SsdStore(StoreSettings(below, 1 << 50))))
        [store] = stores
        assert store.stats().entries == count
        print(f"scan of {count} entries in {SHARDS} directories: {seconds:.2f} s, {seconds / count * 1e6:.1f} us an entry")
        per_call = timed(lambda: [store.contains(key) for key in entries]) / count
        print(f"contains among them: {per_call * 1e6:.2f} us")
        small = memoryview(bytes(4096))
        calls = [timed(lambda key=key: store.put(key, [small])) for key in keys(200)]  # type: ignore[misc]
        print(f"put, in the caller: {median(calls) * 1e6:.0f} us, the longest {max(calls) * 1e6:.0f} us")
        store.close()


def chain(tokens: int) -> None:
    ids = list(range(tokens))

    def hashed() -> None:
        grown = TokenChain(chain_root(b"benchmark"), 16)
        grown.extend(ids)
        grown.digest(tokens)

    print(f"chain over {tokens} tokens: {median(timed(hashed) for _ in range(20)) / tokens * 1e9:.0f} ns a token")


class Idle:
    """Knows what the store has; of reading and writing nothing comes."""

    def __init__(self, store: SsdStore) -> None:
        self._store = store
        self.contains, self.following, self.stats, self.close = store.contains, store.following, store.stats, store.close

    def write(self, entries: Sequence[HostEntry]) -> Future[int]:
        done: Future[int] = Future()
        done.set_result(len(entries))
        return done

    read = write


def lookups(root: Path, tokens: int, count: int) -> None:
    """What a request waits for when the SSD has all of its prompt and host memory nothing, and when it is filed there."""
    page, block = 16, 16
    layout = CacheLayout((CacheGroup(0, None, (0,), 1),), page, (count * (-(-tokens // page) + 1),), 0, checkpoints=1)
    prompts = [np.random.default_rng(seed).integers(0, 248_320, tokens).astype(np.uint32).tobytes() for seed in range(count)]
    with directory_below(root) as below:
        SsdStore(StoreSettings(below, 1 << 50)).close()
        for prompt in prompts:
            kept = TokenChain(chain_root(b"benchmark"), page, block)
            kept.extend_packed(prompt)
            touch(below, [*kept.blocks(0, tokens), kept.checkpoint(tokens - 1)])
        store = SsdStore(StoreSettings(below, 1 << 50))
        host = PrefixCache(layout, FlopsPerByte(1.0, 0.0, 1), 1)
        copies = Idle(store)
        tier, empty = (SsdTier(host, SsdSettings(copies, of, block), by_checkpoint=True) for of in (b"benchmark", b"other"))
        assert all(tier.find("", each, tokens - 1, tokens - 1) for each in prompts)
        find = [worked(lambda each=each: tier.find("", each, tokens - 1, 1)) for each in prompts]  # type: ignore[misc]
        keep = [worked(lambda each=each: empty.keep("", each, [])) for each in in_host(host, empty, prompts)]  # type: ignore[misc]
        for name, seconds in (("look up", find), ("file", keep)):
            print(f"{name} {tokens} tokens: {median(seconds) * 1e6:.0f} us, {median(seconds) / tokens * 1e9:.0f} ns a token")
        store.close()


def in_host(host: PrefixCache, tier: SsdTier, prompts: Sequence[bytes]) -> Iterator[bytes]:
    """One after the other, each once it is in host memory and what the last one had to be written is done."""
    for prompt in prompts:
        ids = np.frombuffer(prompt, np.uint32).tolist()
        lease = host.open("", prompt, len(ids)).lease
        assert host.extend(lease, len(ids)) is not None
        host.record(lease, ids)
        host.close(lease)
        yield prompt
        tier.take()
        tier.begin_plan()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--entry-bytes", type=int, default=78_400_000, help="of one entry; the default is a 27B checkpoint's")
    parser.add_argument("--count", type=int, default=8, help="entries of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", type=int, default=100_000, help="that are scanned")
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} CPUs; {options.count} entries of {options.entry_bytes} bytes a round")
    checksums()
    writes(options.directory, options.entry_bytes, options.count, options.rounds)
    reads(options.directory, options.entry_bytes, options.count, options.rounds)
    scan(options.directory, options.entries)
    chain(24_000)
    for tokens in (2_731, 24_000, 131_000):
        lookups(options.directory, tokens, 20)


if __name__ == "__main__":
    main()
