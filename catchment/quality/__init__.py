"""Error in one place: how wrong an answer may be (`bound`), and what a contract needs (`needed_rate`).

A record that was shed and one that is late are the same to an answer: one that was not sampled. `contract` and
`coverage` serve the slack controllers, `needs` the shed planner, `sample_bounds` and `merge_sites` published bounds.

Import from the modules: light processes such as relays need `merge_sites` alone, and not what computes bounds.
"""
