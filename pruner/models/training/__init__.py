"""Fitting a network: losses, batches of tasks, the Lightning module, the best epoch."""
