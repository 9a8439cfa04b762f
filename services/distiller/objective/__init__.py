"""What "like the teacher" means: the loss, as pure functions, and `Distillation`, which the trainer calls.

total = task_weight · L_task + kl_weight · τ² · D(teacher ‖ student)
      + attention_weight · ‖A_T − A_S‖² + hidden_weight · ‖h_T − h_S‖²

batch.py         tokens, and which of them are scored
task.py          L_task: cross-entropy with the text
divergence.py    D: KL, reverse KL, generalised JSD
top_k.py         D, where only the teacher's most likely tokens are known
chunked.py       a loss over the vocabulary without the logits in memory
forward.py       a model up to its head, and what some layers do on the way
attention.py     ‖A_T − A_S‖²
kept.py          queries and keys of a layer, kept while the model runs
hidden.py        ‖h_T − h_S‖²
refusals.py      the balance between refusing and answering
checks.py        what must hold before the first step
distillation.py  all of it together

Every term is a sum over scored tokens divided by their number, so that a batch may be split over micro-batches and processes.
"""
