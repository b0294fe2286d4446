"""Block trees: scheduled TIR for N candidates at once, without TVM.

A design space of TVM's MetaSchedule is a list of schedule instructions whose sampling decisions are
open. Here the instructions are replayed once for N decision vectors on a tree of loops and blocks
whose extents are int64 [N], and the tree becomes the same loop nests as Ansor's programs.
"""
