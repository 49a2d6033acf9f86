"""A shop, a payment provider and a courier: what ``pgflow demo`` runs.

Start with `flows`: it is the program that you would write. `provider` is the other side, a process
with a book of its own; `day` starts everything, `chaos` kills workers, `proof` compares the books.
"""
