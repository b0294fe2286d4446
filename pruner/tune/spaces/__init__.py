"""Design spaces of a live task: MetaSchedule's, batched or replayed by TVM, and their union."""
