"""Facts -> findings -> plan. Knows no trace and no launcher."""
