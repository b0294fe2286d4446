"""The networks: PaCM, TenSetMLP, TLP, attention with device features."""
