"""MetaSchedule's schedules: the instructions of a trace, applied to a TIR function for N programs.

A design space of TVM's MetaSchedule is a list of schedule instructions whose sampling decisions are
open. The instructions are applied once for N decision vectors to a tree of loops and blocks whose
extents are int64 [N]. The mirror image of :mod:`pruner.program.te`; files of the same name do the
same job.

* ``tree``: the state that instructions change, loops, blocks and buffers (``te/schedule``)
* ``trace``: the vocabulary, one handler an instruction (``te/steps``, ``te/apply``)
* ``replay``: :func:`~replay.apply`, and many programs with a tree for each structure
  (``te/replay``)
* ``copies``: copies of a tree, also for some of its programs
* ``primitives``, ``rfactor``: what the instructions do to the tree (``te/apply``)
* ``layouts``: new dimensions and strides of buffers
* ``inverse``: the iterators of a block from the indices of an access, for inlining
* ``locations``: where a block may be computed, and which locations share a tree (a step of Ansor's
  names the loop)
* ``postprocs``, ``parallelize``: MetaSchedule's postprocessors (Ansor writes their effect as steps)
* ``autocopy``: copies whose loops TVM makes when it lowers a program; ``pipeline``: how many copies
  of a buffer a software pipeline keeps
* ``regions``: what blocks read and write, relaxed over loops (``te/bounds``)
* ``places``: where buffers live, and how much of them is stored (``te/bounds``)
* ``lower``: :func:`~lower.lower`, from the tree to :class:`~pruner.program.nests.LoopNests`
  (``te/lower``)
* ``saved``: design spaces as files, which records of traces are replayed with
* ``verify``, ``shared``, ``vectors``: which programs TVM's check of GPU code accepts: threads,
  shared memory, vectors
* ``stages``: of which programs TVM's primitives find that a padded result holds what is read of it
"""
