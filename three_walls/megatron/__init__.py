"""What is known of Megatron without a trace: what follows from its settings."""
