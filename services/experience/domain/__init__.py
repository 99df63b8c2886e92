"""The rules of experience: pure, with ids and times as arguments."""
