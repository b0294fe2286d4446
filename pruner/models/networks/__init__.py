"""The networks of the cost models.

* `pacm`: PaCM, of Pruner, and its optional branches
* `mlp`: TenSetMLP
* `tlp`: TLP and MTL-TLP
* `hardware_attention`: attention over statements and the device
* `layers`: shared layers
"""
