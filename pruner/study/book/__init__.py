"""The results book: from ``experiments/<item>/item.yaml`` to a page.

* `items`: read the files
* `key_numbers`: numbers from the CSV files
* `page`: Markdown and HTML
* `plots`: SVG
"""
