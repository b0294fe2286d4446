"""The networks.

* `pacm`: PaCM, of Pruner
* `mlp`: TenSetMLP
* `tlp`: TLP and MTL-TLP
* `hardware_attention`: attention over statements and the device
* `branches`: what PaCM can have beside its own
* `layers`: what they share
"""
