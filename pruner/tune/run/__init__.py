"""A tuning run.

* `tuning`: a single call from workloads to results
* `tune_options`: the options of a run
* `budget`: trials, seconds, patience
* `setup`: spaces, searches and references of every task, measurements of earlier runs
* `loop`: the loop of `pruner.search.loop` with a journal and a state on disk
* `learning`: the learned model
* `verifier`: choose the learned model of a run
* `journal`: a row per trial
* `database`: MetaSchedule's database
* `final_choice`: energies, the choice and the front, where the objective is not latency
* `finalists`: the best programs, timed again in turns, and which trial becomes the kernel
* `result`: the results
"""
