"""The running audit: the proof's questions, asked window by window beside running nodes."""
