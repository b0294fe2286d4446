"""What was measured: record readers, quarantine, dataset layout, splits.

One validity rule decides which line of a log is a record (`pruner.data.parse`). A line that breaks
it is quarantined with file, line and reason, and reading goes on; a failed measurement
(``error_no != 0``) is a good line with ``valid=False``.

* `root`: the layout of a record folder
* `tasks`: whole tasks at once, what other rooms consume
* `stream`: lines of a file, plain or compressed, up to the first damage
* `parse`: the validity rule
* `limits`: how long, how many and how deep what is read may be
* `steps`: the vocabulary of schedule steps that the rule knows
* `quarantine`: lines that are not records, counted and reported
* `workload`: workload keys, and when two are the same work
* `origin`: how schedules were found: at random or by search
* `splits`: what a model learns from, is tuned on, and is judged by
* `frozen`: splits that are committed
* `networks`: how often networks call the tasks
* `importing`: raw tuning logs into this layout
* `metaschedule`: MetaSchedule's databases as tables
* `tenset`: TenSet's task pickles
"""
