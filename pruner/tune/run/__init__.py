"""A tuning run.

* `tuning`: one call from workloads to a tuned run
* `options`: what is asked for
* `budget`: how much of it
* `setup`: spaces, searches and references of every task
* `loop`: propose, build, measure, learn, next task
* `live_search`: one task's search
* `task_order`: which task is next
* `estimate`: the time of all tasks together
* `learning`: the learned model
* `verifier`: which one a run has
* `journal`: a row a trial
* `database`: MetaSchedule's database
* `warm`: what earlier runs measured
* `snapshot`: what a resume needs
* `result`: what came of it
"""
