"""What tables, figures and the results book are made of: plain arguments in, rows and plots out."""
