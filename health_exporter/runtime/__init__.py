"""Inside the trainer: who this rank is, what it has done, and how the run ends."""
