"""What was measured: record readers and writers, tables, cards, splits and labels."""
