"""Routed experts on a card: the same choice as ``layers.route``, in shapes that never change.

Every expert is computed for every row and weighed by its share, zero where it was not chosen, so
that the step can be captured and nothing waits for the card. Arrays are torch tensors there.
"""

from __future__ import annotations

from typing import Any, cast

from .card_steps import CardDevice
from .descriptor import MoeSpec, Scoring
from .layers import Step, dense_mlp
from .model_weights import MoeWeights


def moe_mlp_on_card(step: Step, spec: MoeSpec, weights: MoeWeights, x: Any, out: Any) -> None:
    """As ``layers.moe_mlp``."""
    logits: Any = step.work.rows("router", len(x), spec.experts)
    step.device.linear(x, weights.router, logits)
    bias = weights.router_bias
    on_card = None if bias is None else cast(CardDevice, step.device).of_model(bias)
    shares = shares_of(logits, spec, on_card)
    result: Any = step.work.rows("expert", len(x), x.shape[1])
    out.zero_()
    for expert, mlp in enumerate(weights.experts):
        dense_mlp(step, mlp, x, result, add=False)
        share = shares[:, expert : expert + 1]
        # What is not chosen counts nothing, whatever it came to.
        out.add_((result * share).where(share > 0, 0.0))
    if weights.shared is not None:
        dense_mlp(step, weights.shared, x, out, add=True)


def shares_of(logits: Any, spec: MoeSpec, bias: Any) -> Any:
    """``[rows, experts]`` fp32, 0 where not chosen; among equals the lower number wins."""
    exact = logits.double()
    scores = exact.sigmoid() if spec.scoring is Scoring.SIGMOID else exact.softmax(dim=1)
    ranked = scores if bias is None else scores + bias
    if spec.groups > 1:
        ranked = _best_groups(ranked, spec)
    chosen = ranked.sort(dim=1, descending=True, stable=True).indices[:, : spec.chosen]
    shares = scores.gather(1, chosen)
    if spec.normalise:
        shares = shares / (shares.sum(dim=1, keepdim=True) + 1e-20)
    return scores.new_zeros(scores.shape).scatter(1, chosen, shares * spec.scale).float()


def _best_groups(scores: Any, spec: MoeSpec) -> Any:
    """Scores outside the best groups become -inf; a group counts its two best experts."""
    grouped = scores.unflatten(1, (spec.groups, -1))
    strength = grouped.topk(2, dim=2).values.sum(dim=2)
    best = strength.sort(dim=1, descending=True, stable=True).indices[:, : spec.chosen_groups]
    kept = strength.new_zeros(strength.shape).scatter(1, best, 1.0) > 0
    return grouped.where(kept[:, :, None], float("-inf")).flatten(1)
