"""A router's candidates, kept from decision to decision, are those of its view built anew."""

from __future__ import annotations

import random

import pytest
from cluster_parts import incoming, make_router, seen

from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.router import Answer
from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.controlplane.cluster.messages import Ended
from pagetrail.controlplane.cluster.router_view import RouteRecorded, RouterView
from pagetrail.controlplane.lookup import PrefixLookup

WORKERS = ["a", "b", "worker-1", "worker-10", "worker-2"]


@pytest.mark.parametrize("seed", range(12))
def test_candidates_kept_between_decisions_equal_those_built_anew(seed: int) -> None:
    draw = random.Random(seed)
    routed = make_router()
    machine, view, catalog = routed.machine, routed.view, LiveIndex()
    epochs = dict.fromkeys(WORKERS, 1)
    open_requests: list[int] = []
    for step in range(1, 121):
        worker = draw.choice(WORKERS)
        pick = draw.randrange(8)
        if pick < 3:
            changes = {"worker_epoch": epochs[worker], "queue_ns": draw.randrange(9)}
            changes |= {"free_pages": draw.randrange(20), "online": draw.random() < 0.8}
            machine.heartbeat(seen(worker, step, **changes))
        elif pick == 3:
            machine.expired(worker, epochs[worker])
            epochs[worker] += draw.randrange(2)
        elif pick < 6:
            number, _ = machine.received(incoming(f"r{step}", tokens=1 + draw.randrange(40)), step)
            open_requests.append(number)
        elif open_requests:
            number = draw.choice(open_requests)
            attempt = view.requests[number].attempt if number in view.requests else 1
            if draw.random() < 0.7:
                machine.answered(number, attempt, draw.choice(list(Answer)))
            else:
                machine.ended(Ended(number, attempt, FinishReason.STOP, 0, 0, 1))
        for number in view.requests:
            resident = tuple((name, 8) for name in sorted(view.workers) if draw.random() < 0.2)
            recorded = RouteRecorded(PrefixLookup(0, b"", b""), resident)
            anew = RouterView.decode(view.start, view.encode())
            kept = view.route_inputs(number, recorded, catalog, ())
            assert kept == anew.route_inputs(number, recorded, catalog, ())
            assert kept.workers == tuple(sorted(view.workers, key=str.encode))
