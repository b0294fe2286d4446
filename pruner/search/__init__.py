"""Who spends the measurement budget: policies, pools, clocks and budgets."""
