"""Search policies: which programs to measure next.

* `space`: the interface of a design space; the measured programs of a task
* `loop`: propose, measure, observe, choose the next task
* `decision_search`: the search of one task
* `task_order`: choose the next task; the latency of all tasks together
* `policy`: random search, and draft-then-verify
* `adatune`: AdaTune's policy
* `construct`: construction after Roller, without random search
* `propose_lm`: proposals of a language model alone, after TLM; its draws for a task
* `gradient`: gradient search after Felix, in relaxed tile sizes
* `explorer`: evolution with the draft score; choose programs, apart from each other, some at random
* `failures`: kinds of failures, and a model that avoids them
* `objectives`: what a run makes small; two quantities at once, and their front
* `offline`: search on recorded programs
"""
