"""Did it help? Budgets, evaluation, statistics, audits, the comparison report. Looks on, never feeds back."""
