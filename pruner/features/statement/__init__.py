"""The columns of one buffer-store statement (Ansor's feature definition)."""
