"""The student in 8 bits: what quantising costs it, and what repairs that.

1. `dialogues` shares out what is fitted to and what is measured on
2. `known` keeps what the unquantised model says, and gives the KL of another model to it
3. `quantised` has a model whose layers can be int8 or as they were
4. the repairs, each of which is kept only if it helps: `smooth`, `sensitive`, `lora`
5. `repair` goes through them, and says what each brought
"""
