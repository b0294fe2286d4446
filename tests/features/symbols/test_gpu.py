"""GPU symbols of matrix products: the paper's Fig. 3, and a formula of every column."""

import numpy as np
import pytest

from pruner.arrays import dtype_bytes
from pruner.features.symbols.gpu import gpu_symbols
from pruner.features.symbols.statement import Operations, count_operations, nest_statements
from pruner.features.symbols.symbol_table import CPU_COLUMNS, GPU_COLUMNS, OFFICIAL_COLUMNS, fill
from pruner.program.dag.expr import Binary, Cast, Const, Load
from pruner.program.dag.operators import dag_for_workload
from pruner.program.te.apply import apply
from pruner.program.te.lower import lower
from pruner.program.te.skeleton import group_programs
from tests.features.matmul_skeleton import in_type, matmul_dag, matmul_steps

CASES = {  # m, n, k, rows and columns as (vthread, thread, outer, inner), reduce (outer to inner)
    "e1": (128, 128, 128, (1, 8, 2, 2), (1, 8, 2, 2), (4, 2)),
    "e2": (1024, 1024, 1024, (2, 8, 2, 2), (2, 8, 2, 2), (4, 4)),
    "e3": (1024, 960, 1024, (1, 8, 4, 4), (1, 6, 2, 5), (8, 4)),
}


def symbols_by_stage(dag, steps, dtype="float32"):
    """Columns [C, N] by the name of the statement's stage; all steps have one skeleton."""
    groups, _ = group_programs(steps)
    assert len(groups) == 1
    nests = in_type(lower(apply(dag, groups[0].skeleton, groups[0].decisions)), dtype)
    names = [statement.buffer.name for statement in nest_statements(nests)]
    return dict(zip(names, gpu_symbols(nests).values, strict=True))


def columns_of(name: str) -> dict[tuple[str, str], float]:
    """Symbols of one worked example by stage and column."""
    m, n, k, rows, columns, reduce = CASES[name]
    found = symbols_by_stage(matmul_dag(m, k, n), [matmul_steps(m, k, n, rows, columns, reduce)])
    assert sorted(found) == ["A.shared", "B.shared", "compute", "compute.local"]
    return {
        (stage, column.name): float(values[place, 0])
        for stage, values in found.items()
        for place, column in enumerate(GPU_COLUMNS)
    }


@pytest.mark.parametrize("name", CASES)
def test_symbols_are_the_products_of_fig_3(name):
    m, n, k, (i2, i1, i3, i4), (j2, j1, j3, j4), (k1, k2) = CASES[name]
    i0, j0, k0 = m // (i1 * i2 * i3 * i4), n // (j1 * j2 * j3 * j4), k // (k1 * k2)
    s = columns_of(name)
    rows, columns = i2 * i3 * i4, j2 * j3 * j4
    assert s["compute.local", "l0_mem_alloc"] == rows * columns + rows + columns
    # The figure counts multiply-adds, we count both operations.
    macs = i2 * i3 * i4 * j2 * j3 * j4 * k0 * k1 * k2
    assert s["compute.local", "l0_comp_count"] == 2 * macs
    assert s["A.shared", "l1_mem_alloc"] == i1 * i2 * i3 * i4 * k1 * k2
    assert s["B.shared", "l1_mem_alloc"] == j1 * j2 * j3 * j4 * k1 * k2
    assert s["compute.local", "l1_para_info"] == i1 * j1
    assert s["A.shared", "l2_mem_footprint"] == m * j0 * k
    assert s["B.shared", "l2_mem_footprint"] == n * i0 * k
    assert s["compute", "l2_mem_footprint"] == m * n
    assert s["compute.local", "l2_para_info"] == i0 * j0
    assert s["A.shared", "l2_trans_dim"] == k1 * k2
    assert s["B.shared", "l2_trans_dim"] == j1 * j2 * j3 * j4
    assert s["compute.local", "l2_comp_count"] == 2 * m * n * k


def test_the_worked_example_in_numbers():
    s = columns_of("e1")  # docs/paper.md 2.6
    assert s["compute.local", "l0_mem_alloc"] == 24
    assert s["A.shared", "l1_mem_alloc"] + s["B.shared", "l1_mem_alloc"] == 512
    assert s["A.shared", "l2_mem_footprint"] == 65536
    assert s["compute.local", "l2_comp_count"] == 4_194_304
    assert [s[stage, "l2_trans_dim"] for stage in ("A.shared", "B.shared")] == [8, 32]
    assert columns_of("e2")["compute.local", "l0_mem_alloc"] == 80
    assert columns_of("e3")["compute.local", "l0_mem_alloc"] == 186


def test_ragged_fetches_count_what_is_issued():
    s = columns_of("e3")  # 4096 elements by 48 threads: 86 rounds, 32 steps, 128 blocks
    assert s["A.shared", "issued"] == 86 * 48 * 32 * 128
    assert s["A.shared", "l2_mem_footprint"] == 4096 * 32 * 128


def body(extents, spatial):
    """Iterations of the loops from the outermost spatial one that is no single step inwards."""
    inside = out = 1
    for extent, kind in zip(reversed(extents), reversed(spatial), strict=True):
        inside *= extent
        if kind and extent > 1:
            out = inside
    return out


class Product:
    """Every column of a tiled matrix product, written as formulas of its tiles."""

    def __init__(self, size, rows, columns, reduce, vectors, unroll, element_bytes=4):
        self.element_bytes = element_bytes
        (self.m, self.n, self.k), self.vectors, self.unroll = size, vectors, unroll
        self.vi, self.ti, self.oi, self.ii = rows
        self.vj, self.tj, self.oj, self.ij = columns
        self.k1, self.k2 = reduce
        self.k0 = self.k // (self.k1 * self.k2)
        self.rows, self.columns = self.vi * self.oi * self.ii, self.vj * self.oj * self.ij
        self.threads = self.ti * self.tj
        self.blocks = self.m // (self.ti * self.rows) * (self.n // (self.tj * self.columns))
        self.common = dict.fromkeys((c.name for c in GPU_COLUMNS), 0.0) | {
            "l1_para_info": self.threads, "l2_para_info": self.blocks, "unroll": unroll,
            "passes": 1, "vthreads": self.vi * self.vj, "vector": 1,
            "lane_step": 1, "lane_extent": 1,
            "own_bytes": element_bytes, "global_bytes": element_bytes,
        }  # fmt: skip

    def fetch(self, height, width, whole, vector, unique):
        """A tile of height x width, staged in each of the k0 steps; rows of `whole` elements."""
        tile = height * width
        rounds = -(-tile // (vector * self.threads))
        return self.common | {
            "l1_mem_alloc": tile,
            "l2_mem_footprint": tile * self.k0 * self.blocks,
            "l2_trans_dim": width * (height if width == whole else 1),
            "passes": self.k0, "thread_iterations": self.k0 * rounds * vector,
            "vthreads": 1, "vector": vector,
            "issued": self.threads * rounds * vector * self.k0 * self.blocks,
            "unique": unique,
            "inner_tile": rounds * vector,
            "spatial_body": body((rounds, vector), (1, 1)),
        }  # fmt: skip

    def update(self):
        flops = 2 * self.rows * self.columns * self.k
        a = self.rows * self.columns * self.k / (self.ij * self.vj)
        b = self.rows * self.columns * self.k / (self.ii * self.vi)
        own = (self.k0, self.k1, self.oi, self.oj, self.k2, self.ii, self.ij)
        inside = body(own, (0, 0, 1, 1, 0, 1, 1))
        vthreads = self.vi * self.vj
        return self.common | {
            "l0_mem_alloc": self.rows * self.columns + self.rows + self.columns,
            "l0_comp_count": flops,
            "l2_comp_count": flops * self.threads * self.blocks,
            "thread_iterations": flops / 2,
            "shared_loads": a + b,
            "shared_loads_least": (self.rows + self.columns) * self.k,
            "shared_cycles": a * self.conflict(self.ti, self.oi * self.ii * self.k1 * self.k2)
            + b * self.conflict(self.tj, self.oj * self.ij),
            "inner_tile": self.ii * self.ij * vthreads,
            "accumulators": self.rows * self.columns,
            "half_share": float(self.element_bytes == 2),
            "spatial_body": inside * vthreads,
        }  # fmt: skip

    def conflict(self, lanes, elements):
        """Ways of a bank conflict: lanes at a stride meet in 32 / gcd(stride, 32) banks.

        A bank is four bytes wide; what is inside one bank is no conflict.
        """
        stride = max(elements * self.element_bytes // 4, 1)
        return 1 if lanes == 1 else max(1, min(lanes, 32) * np.gcd(stride, 32) / 32)

    def write(self):
        lane = (1, 1)
        if self.ti > 1:
            lane = (self.oi * self.ii * self.n, self.ti)
        if self.tj > 1:
            lane = (self.oj * self.ij, self.tj)
        width = self.tj * self.columns
        own = (self.oi * self.ii, self.oj * self.ij)
        return self.common | {
            "l2_mem_footprint": self.m * self.n, "issued": self.m * self.n,
            "unique": self.m * self.n, "unroll": 0,
            "l2_trans_dim": width * (self.ti * self.rows if width == self.n else 1),
            "thread_iterations": self.rows * self.columns,
            "lane_step": lane[0], "lane_extent": lane[1],
            "inner_tile": self.rows * self.columns,
            "spatial_body": body(own, (1, 1)) * self.vi * self.vj,
        }  # fmt: skip

    def statements(self):
        wide, high = self.tj * self.columns, self.ti * self.rows
        step = self.k1 * self.k2
        return {
            "A.shared": self.fetch(high, step, self.k, self.vectors[0], self.m * self.k),
            "B.shared": self.fetch(step, wide, self.n, self.vectors[1], self.k * self.n),
            "compute.local": self.update(),
            "compute": self.write(),
        }


def random_tilings(rng, size, count, element_bytes=4):
    """Perfect tilings of a matrix product; fetches by three need not come out even."""
    for _ in range(count):
        rows, columns = (tuple(int(x) for x in rng.choice([1, 2, 4], 4)) for _ in range(2))
        reduce = tuple(int(x) for x in rng.choice([1, 2, 8], 2))
        vectors = tuple(int(x) for x in rng.choice([1, 2, 3], 2))
        unroll = int(rng.choice([0, 64, 512]))
        yield Product(size, rows, columns, reduce, vectors, unroll, element_bytes)


def steps_of(p: Product):
    rows, columns = (p.vi, p.ti, p.oi, p.ii), (p.vj, p.tj, p.oj, p.ij)
    return matmul_steps(
        p.m, p.k, p.n, rows, columns, (p.k1, p.k2), vectors=p.vectors, unroll=p.unroll
    )


@pytest.mark.parametrize(
    ("size", "dtype"), [((512, 256, 512), "float32"), ((256, 256, 64), "float16")]
)
def test_every_column_is_its_formula_on_perfect_tilings(size, dtype):
    products = list(random_tilings(np.random.default_rng(0), size, 80, dtype_bytes(dtype)))
    m, n, k = size
    found = symbols_by_stage(matmul_dag(m, k, n), [steps_of(p) for p in products], dtype)
    for number, product in enumerate(products):
        for stage, expected in product.statements().items():
            ours = dict(zip((c.name for c in GPU_COLUMNS), found[stage][:, number], strict=True))
            assert ours == pytest.approx(expected, rel=1e-9), (stage, vars(product))


def relu_columns(shape, threads):
    """Symbols of a relu whose dimensions are fused into blocks of so many threads."""
    size = int(np.prod(shape))
    steps = [
        ["FU", 1, list(range(len(shape)))],
        ["SP", 1, 0, size, [threads], 1],
        ["AN", 1, 0, 5],
        ["AN", 1, 1, 6],
    ]
    text = f'["relu_layer", {", ".join(map(str, shape))}]'
    found = symbols_by_stage(dag_for_workload(text, ()), [steps])
    (values,) = found.values()
    return dict(zip((c.name for c in GPU_COLUMNS), values[:, 0], strict=True))


def test_a_fused_kernel_whose_blocks_end_inside_rows():
    """Relu of 6 x 10: 15 blocks of 4 threads; a block's 4 numbers may lie in two rows."""
    s = relu_columns((6, 10), 4)
    assert (s["l1_para_info"], s["l2_para_info"]) == (4, 15)
    # 4 read and 4 written by each block: no more than the iterations, whatever the box spans
    assert s["l2_mem_footprint"] == s["issued"] == 2 * 60
    assert s["unique"] == 2 * 60
    assert s["l2_comp_count"] == 60  # one max each
    assert s["lane_step"] == 1
    assert s["l2_trans_dim"] == 4


@pytest.mark.parametrize(("shape", "threads"), [((6, 10), 15), ((4, 3, 5), 20), ((60,), 20)])
def test_a_block_of_a_fused_kernel_touches_one_run(shape, threads):
    assert relu_columns(shape, threads)["l2_trans_dim"] == threads


def test_a_factored_reduction():
    rows, columns, inner = 64, 128, 8
    dag = dag_for_workload(f'["reduction_layer", [{rows}, {columns}], 1, false]', ())
    steps = [["SP", 1, 1, columns, [inner], 1], ["RF", 1, 2, 1]]
    group = group_programs([steps])[0][0]
    symbols = gpu_symbols(lower(apply(dag, group.skeleton, group.decisions)))
    # every element is added once into one of `inner` parts, and every part once into the result
    assert symbols["l2_comp_count"][:, 0].tolist() == [rows * columns, rows * inner]
    assert symbols["unique"][0, 0] == rows * columns + rows * inner


def test_symbols_of_a_program_do_not_depend_on_its_neighbours():
    dag = matmul_dag(512, 256, 512)
    products = random_tilings(np.random.default_rng(1), (512, 512, 256), 20)
    group = group_programs([steps_of(p) for p in products])[0][0]
    together = gpu_symbols(lower(apply(dag, group.skeleton, group.decisions))).values
    for row in range(len(group.rows)):
        nests = lower(apply(dag, group.skeleton, group.decisions[row : row + 1]))
        assert np.allclose(gpu_symbols(nests).values[:, :, 0], together[:, :, row])


def test_tables_name_every_column_once_and_describe_it():
    for columns in (GPU_COLUMNS, CPU_COLUMNS, OFFICIAL_COLUMNS):
        assert len({c.name for c in columns}) == len(columns)
        assert all(c.unit and c.formula and c.source for c in columns)


def test_a_column_that_is_not_computed_or_not_in_the_table_is_refused():
    row = dict.fromkeys((c.name for c in OFFICIAL_COLUMNS), 1.0)
    assert fill(OFFICIAL_COLUMNS, [row], 3).shape == (1, len(OFFICIAL_COLUMNS), 3)
    with pytest.raises(KeyError, match="reuse"):
        fill(OFFICIAL_COLUMNS, [{k: v for k, v in row.items() if k != "reuse"}], 3)
    with pytest.raises(KeyError, match="heat"):
        fill(OFFICIAL_COLUMNS, [row | {"heat": 1.0}], 3)


def test_operations_are_counted_in_the_type_of_the_value():
    half = Binary("mul", Load(0, (), "float16"), Load(1, (), "float16"), "float16")
    assert count_operations(half) == Operations(flops=1, special=0, half=1)
    widened = Binary("add", Load(2, (), "float32"), Cast(half, "float32"), "float32")
    assert count_operations(widened) == Operations(flops=2, special=0, half=1)
    small = Cast(Load(0, (), "int8"), "int32")
    products = Binary("add", Load(2, (), "int32"), Binary("mul", small, small, "int32"), "int32")
    assert count_operations(products).flops == 2
    counter = Binary("add", Load(2, (), "int32"), Const(1), "int32")  # an index, beside floats
    assert count_operations(Cast(counter, "float32")).flops == 0
