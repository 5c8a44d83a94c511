"""A streamed chat completion from a pagetrail gateway: python chat.py URL MESSAGE

The surface is OpenAI's, so its client works as well; this one needs nothing but Python.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator


def served_model(url: str) -> str:
    """The name of the model behind the gateway."""
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name


def chat(url: str, message: str, most_tokens: int = 64) -> Iterator[str]:
    """Pieces of the answer as they come."""
    order = {
        "model": served_model(url),
        "messages": [{"role": "user", "content": message}],
        "max_tokens": most_tokens,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(order).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            event = line.decode().strip().removeprefix("data: ")
            if not event or event == "[DONE]":
                continue
            for choice in json.loads(event)["choices"]:
                yield choice["delta"].get("content") or ""


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        for piece in chat(sys.argv[1].rstrip("/"), sys.argv[2]):
            print(piece, end="", flush=True)
    except urllib.error.HTTPError as error:
        sys.exit(f"{error}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"{sys.argv[1]}: {error.reason}; is `pagetrail up` running there?")
    print()
