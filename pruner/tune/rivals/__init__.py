"""Searches of others in the same harness.

* `rival`: what their settings do
* `metaschedule`: MetaSchedule's search
* `ansor`: Ansor's, from outside
* `ansor_child`: the same inside its environment
* `ansor_environment`: that environment
"""
