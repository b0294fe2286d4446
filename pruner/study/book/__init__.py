"""The results book: from ``experiments/<item>/item.yaml`` to a page.

* `items`: read the files
* `remake`: run the commands, copy the files that the page shows
* `key_numbers`: numbers from the CSV files
* `page`: Markdown and HTML
* `plots`: SVG
"""
