"""MetaSchedule's design spaces as batched spaces: TVM's objects in, decision vectors out."""
