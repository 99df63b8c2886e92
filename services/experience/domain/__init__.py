"""The rules of experience: pure, with ids and time as arguments."""
