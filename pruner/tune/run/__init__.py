"""A tuning run.

* `tuning`: one call from workloads to results
* `options`: the options of a run
* `budget`: trials, seconds, patience
* `setup`: spaces, searches and references of every task
* `loop`: propose, build, measure, learn, choose the next task
* `live_search`: the search of one task
* `task_order`: choose the next task
* `estimate`: the time of all tasks together
* `learning`: the learned model
* `verifier`: choose the learned model of a run
* `journal`: one row per trial
* `database`: MetaSchedule's database
* `warm`: measurements of earlier runs
* `snapshot`: the state for a resume
* `result`: the results
"""
