"""Other trainers' logs, judged step by step as if the run were going on now."""
