"""An offer as the worker's machine knows it: digests are computed here, never believed."""

from __future__ import annotations

from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.messages import Incoming, Offer

from .prompts import prompt_of
from .streams import decode_generation


def offer_value(offer: wire.OfferWire, page_tokens: int, chunk_tokens: int) -> Offer:
    """The offer's value, its prompt cut into pages and chunks of these sizes."""
    return Offer(
        number=offer.number,
        attempt=offer.attempt,
        worker=offer.worker,
        worker_epoch=offer.worker_epoch,
        incoming=Incoming(
            request=offer.request,
            tenant=offer.tenant,
            priority=offer.priority,
            deadline_us=offer.deadline_us,
            prompt=prompt_of(
                offer.tokens, offer.salt, page_tokens, chunk_tokens, fresh=_wants_prompt(offer)
            ),
            max_new_tokens=offer.max_new_tokens,
            samples=offer.samples,
        ),
        generated=len(offer.tokens) - offer.prompt_tokens,
    )


def _wants_prompt(offer: wire.OfferWire) -> bool:
    """Whether logits of every prompt row are wanted, so that none may be reused."""
    nothing_sent = len(offer.tokens) == offer.prompt_tokens
    return nothing_sent and decode_generation(offer.sampling).prompt_logprobs is not None
