"""Attribution + config -> named facts. The last stage that sees a frame."""
