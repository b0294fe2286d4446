"""Read TenSet's task pickles without running them.

* `task_pickle`: lists of tasks, ``network_info/*.task.pkl``, and TVM's object graphs in them
* `safe_pickle`: pickles as plain data
"""
