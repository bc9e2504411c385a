"""Why a prompt, or a part of it, did not come from the cache."""

from __future__ import annotations

from enum import Enum


class Miss(Enum):
    """Each value is what a log line says."""

    COLD = "nothing that begins so was ever cached"
    DIVERGED = "what is cached goes on differently"
    EVICTED = "what is cached was longer and has been evicted"
    NO_CHECKPOINT = "keys and values are cached further than any state"
    WINDOW = "pages of a window are gone"
    OPTED_OUT = "the request opted out"
    SALT = "it is cached under another salt"
    PROMPT_LOGPROBS = "log-probabilities of the prompt need all of it computed"
    NO_ROOM = "no page was free to resume into"
    SSD = "what is on SSD could not be read"
