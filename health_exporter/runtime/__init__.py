"""Inside the trainer: who this rank is, what it has done, and how the run ends.

`exporter` is what a trainer calls. It makes `this_rank`, whose parts are `progress`, `server`,
`watch` and `push`, and on rank 0 `run`, with its `judge` and its `receipt`. `exporter_end` ends
them; `ending` hears that the process ends.
"""
