"""What a program computes: expressions, compute DAGs, operators, the import of TenSet's DAGs."""
