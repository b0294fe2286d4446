"""Gradient-boosted trees as rankers.

* `xgboost`: XGBoost on pooled statements
* `lightgbm`: LightGBM on the same
* `forest`: AdaTune's random forest: mean and spread
"""
