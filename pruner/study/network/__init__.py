"""Reports of tuned networks.

* `run`: read the run folder
* `page`: a single HTML file with pictures
"""
