"""Read TenSet's task pickles without running them.

* `task_pickle`: lists of tasks, ``network_info/*.task.pkl``
* `node_graph`: TVM's object graphs, which the tasks hold as JSON
* `safe_pickle`: pickles as plain data
"""
