"""Who ranks: learned and symbolic cost models, losses, metrics, training."""
