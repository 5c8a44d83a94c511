"""The peers of ``bench serve``: each in its own interpreter, asked for one figure after another.

A peer loads its model once and then waits, so that its rounds can take turns with ours: on a shared
machine two figures from the same minute can be compared, two from different ones cannot.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PEER_SECONDS_MAX = 1_800  # for one answer
PEER_CLOSE_SECONDS_MAX = 20
_SCRIPT = Path(__file__).with_name("peer_engines.py")


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to stand beside, and the goals against it by mode and phase."""

    name: str
    variable: str | None  # names its interpreter; None: this environment's own
    goals: Mapping[tuple[str, str], float]


PEERS = (
    Peer("transformers", None, {}),
    Peer(
        "vllm",
        "PAGETRAIL_BENCH_VLLM_PYTHON",
        {
            ("exact", "decode"): 1.0,
            ("exact", "prefill"): 0.7,
            ("fast", "decode"): 1.1,
            ("fast", "prefill"): 0.95,
        },
    ),
    Peer("llama.cpp", "PAGETRAIL_BENCH_LLAMACPP_PYTHON", {}),
)


@dataclass(frozen=True, slots=True)
class Load:
    """What every engine runs: a model, its type, and prompts by batch size."""

    model: Path
    gguf: Path | None  # the model's own file, for a peer that reads no other form
    dtype: str
    new: int
    batches: Mapping[int, Sequence[Sequence[int]]]


class PeerProcess:
    """One peer that loads its model once it is made. Where it is not installed or fails, it answers
    nothing; a failure is said once, on standard error."""

    def __init__(self, peer: Peer, load: Load) -> None:
        self._peer = peer
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes] | None = None
        python = sys.executable if peer.variable is None else os.environ.get(peer.variable)
        if python is None:
            return
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        try:
            self._process = subprocess.Popen(
                # -P: the script's siblings must not stand in for the peer's own modules.
                [python, "-P", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=os.environ | _settings(),
            )
        except OSError as error:
            self._give_up(str(error))
            return
        order = {
            "peer": peer.name,
            "model": str(load.model),
            "gguf": str(load.gguf),
            "dtype": load.dtype,
            "threads": len(os.sched_getaffinity(0)),
            "new": load.new,
            "batches": load.batches,
        }
        self._tell(order)

    def wait(self) -> None:
        """Until the model is loaded."""
        self._answer()

    def figures(self, batch: int) -> dict[str, float]:
        """Tokens a second of one round, by case."""
        self._tell(batch)
        return self._answer()

    def close(self) -> None:
        """End the peer; it is killed when it does not end by itself."""
        self._end()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _end(self) -> int | None:
        """The exit status of the peer, which has ended then; None without one."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # there is nothing more to ask
        try:
            process.wait(PEER_CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
        status = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return status

    def _tell(self, what: object) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except OSError:
            self._give_up(f"it ended with status {self._end()}")

    def _answer(self) -> dict[str, float]:
        """The next answer; what the peer's libraries print is passed by."""
        process = self._process
        if process is None or process.stdout is None:
            return {}
        late = threading.Timer(PEER_SECONDS_MAX, process.kill)
        late.start()
        try:
            for line in process.stdout:
                if line.startswith("figures "):
                    answer: dict[str, float] = json.loads(line.removeprefix("figures "))
                    return answer
        finally:
            late.cancel()
        self._give_up(f"it ended with status {self._end()}")
        return {}

    def _give_up(self, detail: str) -> None:
        if self._errors is not None:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            detail = said[-1] if said else detail
        print(f"bench serve: {self._peer.name} gave no figures: {detail}", file=sys.stderr)
        self.close()


def _settings() -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))
    return {
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(len(cores)),
        # vllm: all cores, none kept for its front end, which runs in the same process.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_NO_USAGE_STATS": "1",
    }
