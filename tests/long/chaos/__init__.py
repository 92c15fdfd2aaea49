"""Chaos: runs of `longspan train` that are killed, stopped, cut off and starved at random, and compared, bit for bit, with runs that
nobody disturbed (`make chaos MINUTES=60`).

runs: what is trained, and how it is started. world: a disk, a network and processes of a case's own. live: one start of a run.
moments: when a fault comes. faults: what is done, and which end is promised. drawing: cases from a seed. case: one case from start to
end. comparing: two folders. tables: what is printed. run: the command."""
