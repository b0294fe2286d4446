"""The columns of one buffer-store statement (Ansor's feature definition).

* `features`: all columns, group by group
* `analysis`: one pass over the stores, shared by the groups
* `accesses`: buffers of a store with simplified indices
* `ops`: arithmetic of one iteration
* `memory`: one buffer access: bytes, cache lines, reuse, stride
* `reuse`: how far away the same data is touched again
* `touches`: what each loop has touched so far
* `stride`: how far apart iterations lie in a buffer
* `tensors`: small array helpers
"""
