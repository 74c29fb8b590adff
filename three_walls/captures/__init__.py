"""What is done with captures besides analyzing them: how to record, examine and share one."""
