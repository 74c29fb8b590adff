"""What ran in every step: operations, their owners, the causes of gaps, waiting and late ranks."""
