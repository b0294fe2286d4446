"""The project and what it needs as a folder of small files, for machines without network.

* `wheels`: this project and its requirements as wheels for a Python and a platform
* `parts`: many files as one archive in parts, with checksums
* `unpack`: takes the parts apart, makes an environment and runs a command there; it stands alone
* `model`: a model of another device's records that travels along
* `make`: the whole folder
"""
