"""The running audit: the same questions, asked window by window beside running nodes."""
