"""Build and run candidates in worker processes; every failure is an outcome of one candidate.

* `measurer`: candidates in, outcomes out
* `jobs`: what worker processes do
* `loaded`: TVM, imported once for all of them
* `numerics`: inputs, and how far results may be off
* `repeats`: how often to repeat
* `energy`: joules that a device has used
* `priority`: real-time priority while timing
* `places`: several devices of a kind at the same time
* `remote`: devices behind an RPC tracker
* `machine`: the target of a platform's name
* `targets`: CPU targets
"""
