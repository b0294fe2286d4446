"""Sizes of a network that a user may set, and open sizes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pruner.errors import PrunerError

# Networks of the catalog, and their sizes beside the batch. Here, so that a wrong name or size is
# refused without the seconds of torch's import.
CATALOG: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("resnet18", "resnet50", "wide_resnet50_2", "mobilenet_v2", "densenet121",
         "inception_v3", "squeezenet1_1", "deeplabv3"),
        ("image",),
    ),
    **dict.fromkeys(("vit_b_16", "vit"), ("image", "layers")),
    "dcgan": (),
    **dict.fromkeys(
        ("bert_tiny", "bert_base", "gpt2", "opt", "llama", "mistral"), ("length", "layers")
    ),
    "detr": ("image",),
}  # fmt: skip
_SHAPE = re.compile(r"[1-9]\d*(x[1-9]\d*)*")  # 1x3x224x224


@dataclass(frozen=True, slots=True, init=False)
class NetworkOptions:
    """Sizes that the user gave, by name.

    A number, or for an input of a file the complete shape as text, ``1x3x224x224``.
    """

    given: Mapping[str, int | str]

    def __init__(self, **sizes: int | str | None) -> None:
        found = {name: size for name, size in sizes.items() if size is not None}
        for name, size in found.items():
            if not _SHAPE.fullmatch(str(size)):
                raise PrunerError(
                    f"sizes.{name}={size}: it must be a whole number, 1 or more, or the shape of "
                    "an input, such as 1x3x224x224"
                )
        object.__setattr__(self, "given", found)

    def number(self, name: str) -> int | None:
        """Return a size, if given; raise `PrunerError` for the shape of an input."""
        if name not in self.given:
            return None
        if not isinstance(size := self.given[name], int):
            raise PrunerError(f"sizes.{name}={size}: it must be a whole number here")
        return size

    @property
    def batch(self) -> int:
        """Return the number of inputs per inference, 1 where it is not given."""
        return self.number("batch") or 1

    @property
    def image(self) -> int | None:
        """Return the pixels per side."""
        return self.number("image")

    @property
    def length(self) -> int | None:
        """Return the number of tokens."""
        return self.number("length")

    @property
    def layers(self) -> int | None:
        """Return the number of layers."""
        return self.number("layers")


def fixed_shapes(
    network: str, inputs: Mapping[str, Sequence[int | str]], options: NetworkOptions
) -> dict[str, tuple[int, ...]]:
    """Replace the open sizes of a file's inputs by the given sizes.

    In `inputs`, an open size is text: its name, or empty. It is given by its name; as
    ``sizes.batch`` where it is the first of an input; or in the shape of its input:
    ``sizes.x=1x3x224x224``, or ``input=1x3x224x224`` where the file has no other. In the words of a
    command line, ``_`` stands for every character that is no letter or digit. Raises `PrunerError`:
    sizes are left open, or a given size is of no input; the message has the open sizes of
    `network`.
    """
    shapes = {
        name: [size or f"{name}.{place}" for place, size in enumerate(shape)]
        for name, shape in inputs.items()
    }
    named = {_word(name): shape for name, shape in shapes.items()}
    if len(shapes) == 1:
        named |= dict.fromkeys(("input",), *shapes.values())
    first = [shape[0] for shape in shapes.values() if shape and _is_batch(shape[0])]
    every = [size for shape in shapes.values() for size in shape if isinstance(size, str)]
    named |= {_word(size): [size] for size in every}
    sizes = dict[int | str, int]()
    for name, text in options.given.items():
        numbers = [int(number) for number in str(text).split("x")]
        wanted: Sequence[int | str] = named.get(_word(name), [])
        if name == "batch" and not wanted and len(numbers) == 1:
            wanted, numbers = first, numbers * len(first)
        fits = [
            number == sizes.get(size, number if isinstance(size, str) else size)
            for number, size in zip(numbers, wanted, strict=False)
        ]
        if not wanted or len(numbers) != len(wanted) or not all(fits):
            raise PrunerError(f"network={network}: leave sizes.{name}={text} out; {_open(shapes)}")
        sizes |= zip(wanted, numbers, strict=True)
    found = {name: [sizes.get(size, size) for size in shape] for name, shape in shapes.items()}
    if any(isinstance(size, str) for shape in found.values() for size in shape):
        raise PrunerError(f"network={network}: {_open(found)}")
    return {name: tuple(int(size) for size in shape) for name, shape in found.items()}


def _open(shapes: Mapping[str, Sequence[int | str]]) -> str:
    """List the inputs with open sizes, and the words that give them."""
    texts = {name: "x".join(map(str, shape)) for name, shape in shapes.items()}
    is_open = {name: any(isinstance(size, str) for size in shape) for name, shape in shapes.items()}
    if not any(is_open.values()):
        return f"its sizes are fixed: {', '.join(' '.join(one) for one in texts.items())}"
    words = dict.fromkeys(
        f"sizes.{'batch' if place == 0 and _is_batch(size) else _word(size)}=1"
        for shape in shapes.values()
        for place, size in enumerate(shape)
        if isinstance(size, str)
    )
    asked = ", ".join(f"{name} {text}" for name, text in texts.items() if is_open[name])
    whole = " ".join(
        f"sizes.{_word(name)}=" + "x".join(str(n) if isinstance(n, int) else "1" for n in shape)
        for name, shape in shapes.items()
        if is_open[name]
    )
    return f"sizes are open: {asked}; give them ({' '.join(words)}) or whole shapes ({whole})"


def _is_batch(size: int | str) -> bool:
    # others follow from a size elsewhere: 2*batch
    return isinstance(size, str) and not set("+-*/ (") & set(size)


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name)
