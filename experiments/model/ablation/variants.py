"""Named changes of the model or its recipe, and joined changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pruner.errors import PrunerError
from pruner.models.networks.pacm import PaCM
from pruner.models.registry import ModelFactory
from pruner.models.training.recipe import Recipe
from pruner.models.training.training import build_network


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference from PaCM with the recipe of ``train.py``.

    `arguments` of the model, `fields` of the recipe; `model` is another class than PaCM for a
    baseline; `failures`: it learns from programs that failed, too. `why`: the question that it
    answers. `of`: the names of changes that it joins.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    model: ModelFactory = PaCM
    failures: bool = False
    why: str = ""
    of: tuple[str, ...] = ()

    def recipe(self, basis: Recipe) -> Recipe:
        """The recipe with the change."""
        return replace(basis, model=partial(self.model, **self.arguments), **self.fields)

    def same_as(self, other: "Change") -> bool:
        """Whether both make the same model by the same recipe.

        Names do not count.
        """
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("arguments", "fields", "model", "failures")
        )

    def reads_draft(self) -> bool:
        """Whether its model reads the analyzer's columns."""
        return build_network(partial(self.model, **self.arguments), seed=0).reads_draft


def together(changes: Mapping[str, Change]) -> Change:
    """Join all changes, by name, in one model.

    Raises PrunerError where two set one thing differently, or where one is another model.
    """
    arguments: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for change in changes.values():
        if change.model is not PaCM:
            raise PrunerError("changes of PaCM go together, other models do not")
        for joined, own in ((arguments, change.arguments), (fields, change.fields)):
            for name, value in own.items():
                if joined.setdefault(name, value) is not value and joined[name] != value:
                    raise PrunerError(f"{name}: {joined[name]} in one change, {value} in another")
    return Change(
        arguments=arguments,
        fields=fields,
        failures=any(change.failures for change in changes.values()),
        why="what helped by itself, together",
        of=tuple(sorted(changes)),
    )
