"""The SSD tier's file store: pages and checkpoints in files, under keys that stand for their tokens and all that shaped them.

`SsdStore` is what others use; keys come from a `TokenChain`. Bytes in, bytes out, or a miss: never an error of the disk.
"""

from headrace.cache.ssd.chain import TokenChain, chain_root
from headrace.cache.ssd.counters import SsdStats
from headrace.cache.ssd.key import EntryKey, Kind
from headrace.cache.ssd.store import SsdSettings, SsdStore

__all__ = ["EntryKey", "Kind", "SsdSettings", "SsdStats", "SsdStore", "TokenChain", "chain_root"]
