"""The results book: what ``experiments/<item>/item.yaml`` says and how it becomes one page."""
