"""What is promised: relations, accounting, mechanisms, randomness, statements, ledgers."""
