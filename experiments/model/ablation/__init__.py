"""Which changes of a model help: chosen on validation tasks, told once of test tasks.

* `cells`: what is fitted where, and how long it may take
* `variants`: a change of the model or of its recipe, and several together
* `candidates`: what is tried, the question that it answers, the baselines
* `report`: a diagnosis of fitted cells as a page
* `fits`: one cell fitted and judged, in a folder of its own
* `run`: all cells of a stage, one source of programs after another
* `choice`: which changes help, by a rule that was fixed before
* `diagnosis`: where the error that is left lies
"""
