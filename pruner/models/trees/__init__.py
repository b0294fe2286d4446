"""Gradient-boosted trees as rankers.

* `xgboost`: XGBoost on pooled statements
* `lightgbm`: LightGBM on pooled statements
* `validation`: checks of boosters before their libraries read them
* `forest`: AdaTune's random forest: mean and spread
"""
