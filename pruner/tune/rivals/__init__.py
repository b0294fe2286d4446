"""Other tuners' searches in our harness.

* `metaschedule`: MetaSchedule's search
* `ansor`: Ansor's, from outside
* `ansor_child`: the same inside its environment
* `ansor_environment`: that environment
"""
