"""Reports of tuned networks.

* `run`: read the run folder
* `pictures`: latencies, tasks, curves, seconds as SVG
* `page`: a single HTML file
"""
