"""Measured records: readers, quarantine, folder layout, splits.

`pruner.data.parse` has the only rule that decides which line of a log is a record. A line that
breaks the rule is quarantined with file, line and reason, and reading continues. A failed
measurement (``error_no != 0``) is a good line with ``valid=False``.

* `root`: the layout of a record folder
* `tasks`: complete tasks as arrays, for the other packages
* `stream`: lines of a file, plain or compressed, up to the first damage
* `parse`: the rule for valid records
* `limits`: limits of length, number and depth of the input
* `steps`: the vocabulary of schedule steps
* `quarantine`: count and report lines that are not records
* `workload`: workload keys, and their equality
* `splits`: training, validation and test tasks
* `frozen`: committed splits, and the record sets of the project
* `networks`: calls of each task by the networks
* `importing`: convert raw tuning logs into this layout
* `public`: fetch public record sets by git
* `metaschedule`: MetaSchedule's databases as tables
* `tenset`: TenSet's task pickles
"""
