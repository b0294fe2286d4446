"""Propose programs by language models over decisions.

The idea is TLM's (Zhai et al., OSDI'24).

* `decision_tokens`: a design space as a sequence of decisions with legal options
* `proposal_model`: the autoregressive network: draw programs, compute their likelihoods
"""
