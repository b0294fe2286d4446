"""What a program is: compute DAGs, schedule steps, the batched replay, devices."""
