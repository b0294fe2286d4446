"""The columns of a buffer-store statement (Ansor's feature definition), group by group."""
