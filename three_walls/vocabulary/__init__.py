"""The field's words as frozen types: imports nothing of ours and nothing third-party."""
