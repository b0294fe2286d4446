"""Algebraic variants of a network, checked before they are tuned.

The rewrites of :mod:`pruner.tune.networks.rewrites` always apply, and are right by review. A
variant is one of several ways to compute the same; it is found by search, checked by evaluation and
chosen by an estimate (the idea of Mirage: Wu et al., OSDI 2025). See docs/variants.md.

* `graph`: expressions, nearly all of them sums of products; convolutions as such sums
* `rules`: other ways to compute a part of a graph, one file each
* `evaluation`: values at chosen places
* `check`: whether two graphs compute the same, exactly modulo two primes and rounded
* `network_regions`: parts of a network as graphs
* `search`: variants of a graph, breadth first, and of a network
* `writing`: graphs as parts of a network
* `choosing`: the choice by the drafts of the tasks
"""
