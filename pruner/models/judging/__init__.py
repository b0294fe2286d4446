"""How a ranking is judged: metrics, chance, and their summary."""
