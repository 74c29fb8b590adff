"""What a capture can support, and how to record what it lacks."""
