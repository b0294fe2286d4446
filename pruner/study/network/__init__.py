"""What came of a tuned network, for people.

* `run`: what its run folder says
* `pictures`: latencies, tasks, curves, seconds as SVG
* `page`: one HTML file with all of it
"""
