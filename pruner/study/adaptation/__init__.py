"""Adaptation methods compared by online tuning on the recorded pools of another platform."""
