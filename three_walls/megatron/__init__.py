"""What Megatron makes of a configuration, known without any trace."""
