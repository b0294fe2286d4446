"""Tables, figures and the results book, from plain arguments.

* `training_run`: one or several trainings, each evaluated
* `model_table`: models x platforms x seeds
* `draft_quality`: quality of the draft
* `tuning_plots`: plots of tuning runs
* `network`: the report of a tuned network, tables of many
* `pareto`: the front of a run with two objectives
* `adaptation`: adaptation methods compared
* `leaderboard`: check and rank submissions to a frozen benchmark
* `book`: the results book
* `markdown`: tables of pages
* `plots`: common parts of all plots
* `grid`: jobs that each leave a file; an interrupted grid continues
"""
