"""Gradient-boosted trees as rankers.

* `xgboost`: XGBoost on pooled statements
* `lightgbm`: LightGBM on the same
* `sound`: boosters looked at before their libraries read them
* `forest`: AdaTune's random forest: mean and spread
"""
