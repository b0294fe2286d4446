"""Find the changes of a model that help.

They are chosen on validation tasks, and judged once on test tasks.

* `cells`: models, settings and seeds to fit, and their expected time
* `candidates`: a change of the model or of its recipe; the changes to try, several together, the
  baselines
* `rates`: rates of the analyzer fitted inside a split, and its columns by these rates
* `fits`: one cell fitted and judged, in a folder of its own
* `run`: all cells of a stage, one source of programs after another
* `choice`: the changes that help, by a rule that was fixed before
* `clean`: test tasks with shipped and with nested rates of the analyzer, as a table
* `diagnosis`: the parts of the remaining error, as a page
"""
