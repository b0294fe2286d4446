"""TenSet's task pickles, read without running them."""
