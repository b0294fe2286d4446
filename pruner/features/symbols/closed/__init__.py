"""The GPU symbols of multi-level tiled programs as closed formulas of the decisions."""
