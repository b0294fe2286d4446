"""Ways to carry a cost model to another platform while that platform is being measured."""
