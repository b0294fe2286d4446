"""The networks of the cost models.

* `pacm`: PaCM, of Pruner
* `mlp`: TenSetMLP
* `tlp`: TLP and MTL-TLP
* `hardware_attention`: attention over statements and the device
* `branches`: optional branches of PaCM
* `layers`: shared layers
"""
