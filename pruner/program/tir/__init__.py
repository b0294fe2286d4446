"""MetaSchedule's schedules: a trace's instructions applied to a TIR function.

A design space of TVM's MetaSchedule is a list of schedule instructions whose sampling decisions are
open. The instructions are applied once for N decision vectors to a tree of loops and blocks whose
extents are int64 [N]. The mirror image of :mod:`pruner.program.te`; files of the same name do the
same job.

* ``tree``: the state that instructions change, loops, blocks and buffers (``te/schedule``)
* ``trace``: the vocabulary, one handler an instruction (``te/steps``, ``te/apply``)
* ``apply_trace``: :func:`~apply_trace.apply`, and many programs with a tree for each structure
* ``copies``: copies of a tree, also for some of its programs
* ``primitives``, ``rfactor``: the rewrites of the tree that instructions make (``te/apply``)
* ``layouts``: new dimensions and strides of buffers
* ``inverse``: the iterators of a block from the indices of an access, for inlining
* ``locations``: the loops that a block may be computed in, and locations that share a tree (a
  step of Ansor's names the loop)
* ``postprocs``, ``parallelize``: MetaSchedule's postprocessors (Ansor writes their effect as steps)
* ``autocopy``: copies whose loops TVM makes when it lowers a program; ``pipeline``: how many copies
  of a buffer a software pipeline keeps
* ``regions``: the elements that blocks read and write, relaxed over loops; the loop that a buffer
  lives under, and its stored extents (``te/bounds``)
* ``lower``: :func:`~lower.lower`, from the tree to :class:`~pruner.program.nests.LoopNests`
  (``te/lower``)
* ``saved``: design spaces as files, needed to replay records of traces
* ``verify``, ``shared``, ``vectors``: the programs that TVM's check of GPU code accepts: threads,
  shared memory, vectors; and programs whose padded results cover their reads
"""
