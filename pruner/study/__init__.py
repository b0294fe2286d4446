"""Tables, figures and the results book: plain arguments in, rows and plots out.

* `training`: one or several trainings, each evaluated
* `table`: models x platforms x seeds
* `draft`: quality of the draft
* `tuning`: plots of tuning runs
* `network`: the report of a tuned network, tables of many
* `adaptation`: adaptation methods compared
* `leaderboard`: check and rank submissions to a frozen benchmark
* `book`: the results book
* `plots`: common parts of all plots
* `steps`: commands in sequence, with a time limit for each
* `device`: a campaign on one device, in time slots
* `package`: the project as a folder, for machines without a network connection
"""
