"""Other tuners' searches in our harness.

* `metaschedule`: MetaSchedule's search
* `ansor`: Ansor's, from outside, and its environment
* `ansor_child`: the same inside its environment
"""
