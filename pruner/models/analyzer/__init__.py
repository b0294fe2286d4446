"""The symbol-based analyzer: latency from symbols and a device's numbers, no learning."""
