"""Made-up English: sentences that a model reads and answers as text. It is not natural text:
figures that depend on what is said, such as how many drafts are accepted, need prompts of the real kind.
"""

from __future__ import annotations

import random

_NOUNS = (
    "the river", "a mill", "the old bridge", "a miller", "the stone wheel", "our village", "the harvest", "a trader",
    "the valley", "the winter flood", "a fisherman", "the market", "the wooden gate", "a letter", "the mountain road",
    "the morning fog", "a young engineer", "the council", "the library", "a painter", "the north wind", "the orchard",
    "a ferry", "the school",
)
_VERBS = (
    "changed", "remembered", "followed", "carried", "repaired", "described", "measured", "waited for", "slowly reached",
    "stopped", "protected", "sold", "watched", "rebuilt", "feared", "crossed", "needed", "surprised",
)
_ENDINGS = (
    "before the first snow", "without saying why", "for almost forty years", "because the water was low",
    "as everybody had hoped", "in spite of the new law", "on the third day", "near the southern border",
    "while the others slept", "more than once", "although nobody had asked", "when the bells rang",
)
_REQUESTS = (
    "Explain why {} {} {}.", "Write a short story in which {} {} {}.", "List the reasons for which {} {} {}.",
    "Summarise what happened after {} {} {}.", "Was it wise that {} {} {}? Argue for both sides.",
)


def prose(source: random.Random, words: int) -> str:
    """Sentences of `words` words in all; the last one is cut."""
    said: list[str] = []
    while len(said) < words:
        said += f"{_clause(source)}.".capitalize().split()
    return " ".join(said[:words])


def question(source: random.Random, words: int) -> str:
    """A request to the model, after as much prose as makes it `words` long; never cut."""
    asked = source.choice(_REQUESTS).format(source.choice(_NOUNS), source.choice(_VERBS), _object(source))
    before = prose(source, words - len(asked.split()))
    return f"{before}\n\n{asked}" if before else asked


def _clause(source: random.Random) -> str:
    return f"{source.choice(_NOUNS)} {source.choice(_VERBS)} {_object(source)}"


def _object(source: random.Random) -> str:
    return f"{source.choice(_NOUNS)} {source.choice(_ENDINGS)}"
