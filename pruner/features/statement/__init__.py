"""The columns of a buffer-store statement (Ansor's feature definition).

* `features`: all columns, group by group
* `analysis`: one pass over the stores, shared by the groups
* `accesses`: buffers of a store with simplified indices
* `ops`: arithmetic of one iteration
* `memory`: one buffer access: bytes, cache lines, reuse, stride
* `reuse`: distance to the next touch of the same data
* `touches`: bytes and elements each loop has touched so far
* `stride`: distance of iterations in a buffer
* `array_helpers`: small array helpers
"""
