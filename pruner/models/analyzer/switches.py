"""Terms of the analyzer's forms, by name, which ablations leave out."""

from collections.abc import Mapping

from pruner.errors import PrunerError

GROUPS = {"c": "compute", "m": "memory"}
Terms = Mapping[str, str | None]  # name of a term, and its group


def _terms(*names: str) -> Terms:
    return {name: name[-1] for name in names}


HARDWARE_TERMS = _terms(  # on GPUs, also on tensor cores
    "issue_c", "wave_c", "rolled_c", "latency_c", "spill_m", "occupancy_m", "transaction_m",
    "cache_m",
)  # fmt: skip
CPU_TERMS = _terms(
    "lanes_c", "issue_c", "chain_c", "choice_c", "balance_c", "register_m", "cache_m"
)  # fmt: skip
# The ablations of Table 10.
PAPER_TERMS = _terms("reuse_c", "warp_c", "wave_c", "registers_m", "shared_m", "transaction_m")
# Blocks against multiprocessors, threads against whole warps; "m" is the paper's P_l0,m.
OFFICIAL_TERMS: Terms = {"wave": "c", "warp": "c", "registers": "m", "reuse": "c", "memory": None}


def without(terms: Terms, name: str | None) -> frozenset[str]:
    """All terms except a group or a term; raises `PrunerError` for an unknown name."""
    left_out = {term for term, group in terms.items() if name and name in (term, group)}
    if name is not None and not left_out:
        known = ", ".join((*GROUPS, *terms))
        raise PrunerError(f"model.without={name} is unknown; known: {known}")
    return frozenset(terms) - left_out
