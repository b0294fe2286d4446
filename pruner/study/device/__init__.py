"""A campaign on one device: what a new GPU is asked in half an hour, most telling first.

* `options`: the device, the minutes, how large
* `operators`: which operators are tuned
* `stages`: the commands of every stage, in boxes of minutes
* `state`: what the device says of itself: clocks, temperature, versions
"""
