"""What is done with captures besides analyzing them: recording, examining and scrubbing one."""
