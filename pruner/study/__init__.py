"""What tables, figures and the results book are made of: plain arguments in, rows and plots out.

* `training`: one or several fits, each judged
* `table`: models x platforms x seeds
* `draft`: quality of the draft
* `tuning`: pictures of tuning runs
* `network`: the report of a tuned network, tables of many
* `adaptation`: methods compared
* `leaderboard`: submissions to a frozen benchmark, checked and ranked
* `book`: the results book
* `plots`: what pictures share
* `workers`: jobs in forked processes
* `commands`: shell commands side by side
* `steps`: commands one after another, in boxes of seconds
* `device`: a campaign on one device, in boxes of minutes
* `package`: the project in a folder, for machines without network
"""
