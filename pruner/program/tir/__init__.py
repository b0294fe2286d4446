"""MetaSchedule's schedules: a trace's instructions applied to a TIR function.

A design space of TVM's MetaSchedule is a list of schedule instructions whose sampling decisions are
open. The instructions are applied once for N decision vectors to a tree of loops and blocks whose
extents are int64 [N]. The mirror image of :mod:`pruner.program.te`; files of the same name do the
same job. docs/architecture.md has both engines side by side.
"""
