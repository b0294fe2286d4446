"""The results book: what ``experiments/<item>/item.yaml`` says and how it becomes one page.

* `items`: what a file says
* `remake`: its commands, and the files that the page shows
* `results`: numbers from its CSV files
* `page`: Markdown and HTML
* `plots`: SVG
"""
