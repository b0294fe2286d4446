"""A campaign on one device: what a new GPU is asked in half an hour, most telling first.

* `sizes`: which operators, networks and pools, how many trials: in full, or to rehearse
* `options`: the device, the minutes, how large
* `finding`: which described device this machine's GPU is
* `ready`: whether that GPU can be asked anything, and where CUDA lies
* `stages`: the commands of every stage, in boxes of minutes
* `campaign`: run what is missing, or say what there is to do
* `state`: what the device and the machine say of themselves
* `tables`: rows from the folders of the runs
* `results`: small files of a campaign: tables, the device, records with a card
"""
