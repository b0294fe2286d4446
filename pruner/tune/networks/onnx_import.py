"""Import an ONNX file as a Relax module.

1. ``onnx_ir`` reads the file, and open sizes get numbers.
2. ``onnxscript`` inlines functions and folds shapes that the graph computes: TVM takes constants.
   Loops of a constant number of steps are unrolled (:mod:`pruner.tune.networks.onnx_loops`).
   An operator that TVM lacks is replaced by the function that defines it in ONNX, if there is one.
3. TVM's front end converts the operators, except those of
   :mod:`pruner.tune.networks.operators_onnx`, which it lacks or gets wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pruner.errors import MissingExtra, PrunerError, lines_of
from pruner.tune.measure.numerics import Kind
from pruner.tune.measure.numerics import inputs as seeded
from pruner.tune.networks.onnx_loops import RANDOM, unroll
from pruner.tune.networks.operators_onnx import CONVERTERS
from pruner.tune.networks.operators_onnx.windows import MICROSOFT
from pruner.tune.networks.sizes import NetworkOptions, fixed_shapes
from pruner.tune.tvm_import import load_tvm

_ONNX = ("", "ai.onnx")  # domains
# Operators outside ONNX that can be converted.
_MICROSOFT = {"BiasGelu", "FastGelu", "Gelu", "QuantizeLinear", "DequantizeLinear", *MICROSOFT}
# TVM's converters of these mean operators of Microsoft's, or leave attributes or outputs out.
_DEFINED = {"Attention", "RotaryEmbedding", "SpaceToDepth"}
_WAY_ROUND = "write that part with other operators, or leave it out of the network"
_OLDEST = 11  # version of the operators that TVM converts as they are
# whose second input has indices of the first
_INDEXED = ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND")
_ROUNDS = 8  # of folding at most; functions are nested less deep


def from_onnx(path: Path, network: str, options: NetworkOptions) -> Any:
    """Import an ONNX file with its weights as constants; ``options`` give open sizes.

    Raises `MissingExtra`: the package onnx or onnxscript is not installed. Raises `PrunerError`:
    see `onnx_inputs`, or an operator that cannot be converted.
    """
    model = _read(path, network, options)
    _simplify(model)
    return _converted(model)


def onnx_inputs(
    path: Path, network: str, options: NetworkOptions, seed: int, kind: Kind = "signed"
) -> list[NDArray[Any]]:
    """Draw inputs of an ONNX file, in order, without its weights.

    Whole numbers that choose rows of a constant table are below their number, and those of masks
    are 0 or 1: others would end in an error.

    Raises `MissingExtra`: see `from_onnx`. Raises `PrunerError`: no ONNX file, weights in another
    file that is missing, versions that are not known, inputs that are no tensors, or sizes that are
    left open.
    """
    model = _read(path, network, options)
    # the sizes of tables that are no weights: Cast, DequantizeLinear, Constant
    infer = _library("onnx_ir.passes.common").ShapeInferencePass
    infer(check_type=False, strict_mode=False)(model)
    found = model.graph.inputs
    drawn = seeded([(tuple(one.shape), str(one.dtype.numpy())) for one in found], seed, kind)
    return [
        values if values.dtype.kind not in "iu" else values % values.dtype.type(_rows(one))
        for one, values in zip(found, drawn, strict=True)
    ]


def _rows(value: Any) -> int:
    """Return the rows of the smallest table that a value indexes; masks: 2."""
    rows = [2 if "mask" in (value.name or "") else 8]
    for node, place in value.uses():
        table = node.inputs[0]
        if node.op_type in _INDEXED and place == 1 and table is not None and table.shape:
            each = node.op_type in ("GatherND", "ScatterND")  # an index of each dimension
            axis = node.attributes.get_int("axis", 0)
            sizes = table.shape if each else [table.shape[axis]]
            rows += [size if isinstance(size, int) else 8 for size in sizes]
        elif node.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze") and not place:
            rows.append(_rows(node.outputs[0]))
    return max(min(rows), 1)


def multiplies_integers(path: Path) -> bool:
    """Check an ONNX file for products of whole numbers."""
    nodes = _library("onnx").load(path, load_external_data=False).graph.node
    return any(one.op_type.startswith("QLinear") or "Integer" in one.op_type for one in nodes)


def _read(path: Path, network: str, options: NetworkOptions) -> Any:
    onnx, ir = _library("onnx"), _library("onnx_ir")
    if not path.is_file():
        raise PrunerError("no such file")
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf raises kinds of its own
        raise PrunerError("this is no ONNX file, or it is damaged") from error
    odd = sorted({f"{one.domain}.{one.op_type}" for one in proto.graph.node if _is_odd(one)})
    if odd and not proto.functions:
        raise PrunerError(_lacking(odd))
    version = next((one.version for one in proto.opset_import if one.domain in _ONNX), 1)
    if not proto.graph.node or version > onnx.defs.onnx_opset_version():
        latest = onnx.defs.onnx_opset_version()
        reason = f"its operators are of version {version}, onnx {onnx.__version__} has {latest}"
        raise PrunerError(f"{reason}; update onnx" if proto.graph.node else "it has no operators")
    if version < _OLDEST:
        proto = _modern(proto)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    _load_weights(model)
    # older files have their weights among the inputs, too; these would not be folded
    _library("onnx_ir.passes.common").RemoveInitializersFromInputsPass()(model)
    _fix_sizes(model, network, options)
    return model


def _is_odd(node: Any) -> bool:
    return node.domain not in (*_ONNX, "com.microsoft")


def _lacking(names: Sequence[str]) -> str:
    way = _WAY_ROUND
    if any(name.startswith("com.microsoft.QLinear") for name in names):
        way = f"if onnxruntime quantised the file, quantise it with QuantFormat.QDQ; else {way}"
    elif any(name.startswith("com.microsoft") for name in names):
        way = f"if onnxruntime optimised the file, take it as it was before; else {way}"
    return f"TVM cannot import {', '.join(names)}; {way}"


def _modern(proto: Any) -> Any:
    """Convert old operators to the oldest version that TVM takes as it is."""
    onnx = _library("onnx")
    try:
        proto = onnx.version_converter.convert_version(proto, _OLDEST)
    except Exception as error:  # of C++, of kinds of its own
        line = lines_of(error)[-1]
        raise PrunerError(
            f"its operators are too old, and onnx cannot convert them to version {_OLDEST}: {line}"
        ) from error
    for node in proto.graph.node:
        if node.op_type == "Resize":  # which knew one way, and the converter leaves the new default
            known = [one for one in node.attribute if one.name == "mode"]
            del node.attribute[:]
            old = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            node.attribute.extend(
                [*known, *(onnx.helper.make_attribute(*item) for item in old.items())]
            )
    return proto


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(name.partition(".")[0].replace("_", "-"), "network") from error


def _load_weights(model: Any) -> None:
    ir = _library("onnx_ir")
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and not Path(tensor.path).is_file():
                raise PrunerError(
                    f"its weights are in {tensor.location}, which is not in "
                    f"{tensor.base_dir or '.'}; put this file beside the network's"
                )
            if isinstance(tensor, ir.ExternalTensor):
                end = (tensor.offset or 0) + tensor.nbytes
                if Path(tensor.path).stat().st_size < end:
                    raise PrunerError(
                        f"its weights in {tensor.location} are cut off: {end} bytes are read; "
                        "fetch this file again"
                    )
    ir.external_data.load_to_model(model)


def _fix_sizes(model: Any, network: str, options: NetworkOptions) -> None:
    ir, sizes = _library("onnx_ir"), dict[str, list[int | str]]()
    ends = [("input", one) for one in model.graph.inputs]
    ends += [("output", one) for one in model.graph.outputs if one.type is not None]
    for kind, value in ends:
        if not isinstance(value.type, ir.TensorType) or value.dtype == ir.DataType.STRING:
            raise PrunerError(f"its {kind} {value.name} is no tensor of numbers")
    for value in model.graph.inputs:
        if value.shape is None:
            raise PrunerError(f"its input {value.name} has no number of dimensions; export it anew")
        # some exporters write -1
        sizes[value.name] = [
            (size if size > 0 else "") if isinstance(size, int) else size.value or ""
            for size in value.shape
        ]
    shapes = fixed_shapes(network, sizes, options)
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[value.name])
    for node in model.graph.all_nodes():  # shapes of results follow from those of the inputs
        for value in node.outputs:
            value.shape = None


def _simplify(model: Any) -> None:
    """Inline functions, fold what does not depend on values of the inputs, unroll loops."""
    common = _library("onnx_ir.passes.common")
    fold = _library("onnxscript.optimizer").fold_constants
    common.InlinePass()(model)
    if "ai.onnx" in model.opset_imports:
        model.opset_imports[""] = model.opset_imports.pop("ai.onnx")
    for node in model.graph.all_nodes():
        node.domain = "" if node.domain in _ONNX else node.domain
    for _ in range(_ROUNDS):
        common.RemoveUnusedNodesPass()(model)  # also outputs, for which `_expand` looks
        folded = fold(model, onnx_shape_inference=True, should_fold=_is_folded).modified
        changed = unroll(model)  # before operators in its body are looked at
        changed = _expand(model) or changed
        if not changed and not folded:
            break
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveUnusedNodesPass()(model)


def _is_folded(node: Any) -> bool | None:
    if node.op_type in RANDOM:  # onnxscript folds one of them
        return False
    # onnxscript leaves them by default, and TVM takes numbers only
    return True if node.op_type in ("ConstantOfShape", "DequantizeLinear") else None


def _expand(model: Any) -> bool:
    """Replace operators that TVM lacks by their definitions in ONNX; whether there were any."""
    ir, common = _library("onnx_ir"), _library("onnx_ir.passes.common")
    known = _front_end()._get_convert_map()
    for number, node in enumerate(model.graph):
        name = node.op_type
        # TVM's statistics of a normalisation are constants that stand in for them
        statistics = name == "LayerNormalization" and len(node.outputs) > 1
        lacking = name not in known and name not in CONVERTERS
        if node.domain == "" and (lacking or statistics or name in _DEFINED):
            function = _definition(node, model.opset_imports[""])
            if function is not None:
                function.overload = f"definition_{number}"
                with suppress(ir.serde.SerdeError):  # Attention of padded sequences is not sound
                    defined = ir.serde.deserialize_function(function)
                    node.overload = function.overload
                    model.functions[defined.identifier()] = defined
    count = len(model.functions)
    common.InlinePass()(model)
    return count > 0


def _definition(node: Any, version: int) -> Any:
    """Return the function that defines an operator, None where ONNX has none."""
    onnx, ir = _library("onnx"), _library("onnx_ir")
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return None
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes.add(ir.from_proto(attribute.default_value))
    function = onnx.FunctionProto()
    if schema.has_function:
        known = [one for one in schema.function_opset_versions if one <= version]
        written = schema.get_function_with_opset_version(version)
        function.ParseFromString(written or schema.get_function_with_opset_version(max(known)))
    elif schema.has_context_dependent_function:
        types = []
        for value in node.inputs:
            kind = onnx.TypeProto()
            if value is not None:
                ir.serde.serialize_type_into(kind, value.type)
                ir.serde.serialize_shape_into(kind, value.shape)
            types.append(kind.SerializeToString())
        written = ir.serde.serialize_node(node).SerializeToString()
        make = schema.get_context_dependent_function_with_opset_version
        known = [one for one in schema.context_dependent_function_opset_versions if one <= version]
        function.ParseFromString(make(version, written, types) or make(max(known), written, types))
    else:
        return None
    del function.opset_import[:]
    function.opset_import.append(onnx.helper.make_opsetid("", version))
    return function


def _front_end() -> Any:
    load_tvm()
    return importlib.import_module("tvm.relax.frontend.onnx.onnx_frontend")


def _converted(model: Any) -> Any:
    front, onnx, ir = _front_end(), _library("onnx"), _library("onnx_ir")
    known = {*front._get_convert_map(), *CONVERTERS} - {"Attention"}
    lacking = {
        f"{node.domain}.{node.op_type}".strip(".")
        for node in model.graph
        if _is_odd(node) or node.op_type not in (_MICROSOFT if node.domain else known)
    }
    if lacking:
        raise PrunerError(_lacking(sorted(lacking)))

    class Importer(front.ONNXGraphImporter):  # type: ignore[name-defined]
        """Converts operators by `CONVERTERS` first, and names failed operators."""

        def convert(
            self,
            name: str,
            inputs: Sequence[Any],
            attrs: Mapping[str, Any],
            version: int | None = None,
        ) -> Any:
            """Convert an operator by TVM; `inputs` are Relax expressions or None."""
            given = front.onnx_input(inputs)
            return super()._convert_operator(name, given, dict(attrs), version or self.opset)

        def operator(self, name: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
            """Convert an operator as if the file had it: by `CONVERTERS` first."""
            return self._convert_operator(name, front.onnx_input(inputs), dict(attrs), self.opset)

        def _check_for_unsupported_ops(self, graph: Any) -> None:
            """Leave this to the check above, which names domains, too."""

        def _parse_attr(self, attr_proto: Any) -> dict[str, Any]:
            # TVM's own refuses lists of nothing
            values = {one.name: onnx.helper.get_attribute_value(one) for one in attr_proto}
            return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

        def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
            convert = CONVERTERS.get(op_name)
            try:
                result = None if convert is None else convert(self, inputs, attrs)
                if result is None:
                    result = super()._convert_operator(op_name, inputs, attrs, opset)
                result = self.bb.normalize(result)
                _check_result(op_name, inputs, attrs, result)
            except PrunerError:
                raise
            except Exception as error:  # TVM raises kinds of its own
                line = lines_of(error)[0]
                raise PrunerError(
                    f"TVM cannot import this {op_name}: {line}; {_WAY_ROUND}"
                ) from error
            return result

    proto = ir.to_proto(model)
    importer = Importer({}, {}, keep_params_in_input=False)
    with redirect_stdout(StringIO()):  # TVM prints each operator that it cannot convert
        return importer.from_onnx(proto.graph, model.opset_imports[""])


def _check_result(name: str, inputs: Any, attrs: Any, result: Any) -> None:
    """Check what TVM leaves to chance."""
    relax = load_tvm().relax
    kinds = list(result.ty.fields) if isinstance(result.ty, relax.TupleType) else [result.ty]
    if len(kinds) < attrs["tvm_custom"]["num_outputs"]:
        raise ValueError(f"TVM has only {len(kinds)} of its outputs")
    if not all(_sizes(kind) is not None for kind in kinds):
        raise ValueError("the size of its result depends on values of the input")
    if name.startswith(("Arg", "Reduce")) and 0 in (_sizes(inputs[0].ty) or ()):
        raise ValueError("it takes a tensor without elements")  # TVM reads memory of others


def _sizes(kind: Any) -> list[int] | None:
    """Return the extents of a type, None for open extents."""
    relax, tirx = load_tvm().relax, load_tvm().tirx
    if not isinstance(kind, relax.TensorType):
        return []
    shape = kind.shape
    if shape is None or not all(isinstance(size, tirx.IntImm) for size in shape):
        return None
    return [int(size) for size in shape]
