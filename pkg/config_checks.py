"""What no single field of a configuration can say: checks across settings, and quotas read.

Owns the refusals and their texts. The schema with the bounds of each field is `config`; this module
reads no file and no environment.
"""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError
from pagetrail.config import Config, PolicyConfig, TenantsConfig, log_limits
from pagetrail.controlplane.log.endpoints import is_local
from pagetrail.controlplane.policy.registry import EVALUATORS


def check_evaluators(policy: PolicyConfig) -> None:
    """Raises BadInputError unless each setting names an evaluator of its own kind of decision."""
    for kind in policy.__struct_fields__:
        name = getattr(policy, kind)
        makes = sorted(n for n, known in EVALUATORS.items() if known.kind.name.lower() == kind)
        if name not in makes:
            raise BadInputError(
                f"policy.{kind} = {name!r} is no evaluator of {kind} decisions; expected "
                f"{' or '.join(makes)}"
            )


def page_quotas(tenants: TenantsConfig) -> tuple[tuple[str, int], ...]:
    """(tenant, pages) in order of tenant. Raises BadInputError when one stands twice, or has 0."""
    if tenants.quotas is None:
        return ()
    pairs = [pair.strip().partition("=") for pair in tenants.quotas.split(",")]
    quotas = sorted((name, int(pages)) for name, _, pages in pairs)
    if len({name for name, _ in quotas}) != len(quotas) or any(not pages for _, pages in quotas):
        raise BadInputError(
            f"tenants.quotas = {tenants.quotas!r} names a tenant twice or gives it no page; "
            "expected each tenant once with at least 1 page; leave the others out"
        )
    return tuple(quotas)


def check_config(config: Config) -> None:
    """Checks what no single field can say. Raises BadInputError naming the settings involved."""
    log_limits(config)
    given = sum(pages for _, pages in page_quotas(config.tenants))
    if given > config.worker.pages:
        raise BadInputError(
            f"tenants.quotas give away {given} pages and worker.pages = {config.worker.pages}; "
            "expected no more than there are; lower the quotas or raise worker.pages"
        )
    check_evaluators(config.policy)
    for name, endpoint in (
        ("writer.bind", config.writer.bind),
        ("writer.publish", config.writer.publish),
        ("writer.bulk", config.writer.bulk),
    ):
        if endpoint is None or is_local(endpoint):
            continue
        for key, value in (
            ("sockets.secret_key_file", config.sockets.secret_key_file),
            ("sockets.client_keys_directory", config.sockets.client_keys_directory),
        ):
            if value is None:
                raise BadInputError(
                    f"{name} = {endpoint!r} listens beyond this machine and {key} is not set; "
                    "expected CURVE keys there; set it or bind to 127.0.0.1"
                )
    if not is_local(f"tcp://{config.gateway.host}:0") and config.gateway.api_keys_file is None:
        raise BadInputError(
            f"gateway.host = {config.gateway.host!r} listens beyond this machine and "
            "gateway.api_keys_file is not set; expected API keys there; set it or use 127.0.0.1"
        )
    pool_tokens = config.worker.pages * config.worker.page_tokens
    if pool_tokens < config.worker.context:
        raise BadInputError(
            f"worker.pages = {config.worker.pages} of worker.page_tokens = "
            f"{config.worker.page_tokens} hold {pool_tokens} tokens and worker.context = "
            f"{config.worker.context}; expected room for one longest sequence; raise worker.pages "
            "or lower worker.context"
        )
