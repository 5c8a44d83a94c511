"""What the demo asks: conversations about the Python language, over its own documentation.

The text is the language reference that every Python carries (`pydoc_data.topics`, PSF licence):
real English prose. Several conversations share each long system prompt; a workload is a function
of its seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

SYSTEM_TOPICS = ("import", "exceptions", "naming")
QUESTION_TOPICS = (
    "assert",
    "break",
    "class",
    "del",
    "for",
    "global",
    "if",
    "lambda",
    "pass",
    "raise",
    "return",
    "try",
    "while",
    "with",
    "yield",
    "comparisons",
    "slicings",
    "strings",
)
QUESTIONS = (
    "In one sentence, what is this about?",
    "Which part of it would surprise a beginner?",
    "Give a very short example.",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A system prompt and the questions that follow one another."""

    name: str
    system: str
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """``conversations`` run at once, their turns in order."""

    conversations: tuple[Conversation, ...]
    long_questions: tuple[Conversation, ...]  # asked while a worker is killed
    fork: Conversation


def excerpt(topic: str, characters: int, start: int = 0) -> str:
    """A piece of the documentation, cut between words, with its white space folded."""
    text = " ".join(topics[topic].split())
    piece = text[start : start + characters]
    return piece.rpartition(" ")[0]


def make_workload(seed: int, conversations: int = 9, turns: int = 3) -> Workload:
    """The demo's requests."""
    draw = random.Random(seed)
    names = draw.sample(QUESTION_TOPICS, k=len(QUESTION_TOPICS))
    systems = [
        "You explain the Python language briefly. Use only this text. " + excerpt(topic, 1_500)
        for topic in SYSTEM_TOPICS
    ]
    talks = [
        Conversation(
            f"talk-{number}",
            systems[number % len(systems)],
            _questions(names[number % len(names)], turns),
        )
        for number in range(conversations)
    ]
    longs = [
        Conversation(
            f"long-{number}",
            systems[number % len(systems)],
            (f"Explain at length, with an example: {excerpt(names[-1 - number], 260)}",),
        )
        for number in range(4)
    ]
    fork = Conversation(
        "fork", systems[0], (f"Suggest a title for this: {excerpt(names[0], 200)}",)
    )
    return Workload(tuple(talks), tuple(longs), fork)


def _questions(topic: str, turns: int) -> tuple[str, ...]:
    first = f"{QUESTIONS[0]} {excerpt(topic, 300)}"
    return (first, *(QUESTIONS[1 + turn % (len(QUESTIONS) - 1)] for turn in range(turns - 1)))


def messages(talk: Conversation, answers: Sequence[str], turn: int) -> list[dict[str, str]]:
    """The messages of one turn: the whole conversation so far."""
    said = [{"role": "system", "content": talk.system}]
    for place in range(turn):
        said.append({"role": "user", "content": talk.questions[place]})
        said.append({"role": "assistant", "content": answers[place]})
    said.append({"role": "user", "content": talk.questions[turn]})
    return said
