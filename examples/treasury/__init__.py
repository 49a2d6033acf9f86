"""The treasury day: a real job on real rates, with a bank that loses acknowledgements and workers
that are killed.

A company keeps four bank accounts in four currencies. Every business day its treasury reads the
statements of the day, prices them at the reference rates of the European Central Bank, decides by a
standing policy, sweeps what is too much or too little, hedges what is too exposed, posts all of it
to the general ledger, closes the day and files a liquidity ratio. One run is one day; a quarter is
63 of them.

============  =================================================================================
``workflow``  the day itself: start here
``policy``    what the policy says, and what follows from it for a day: a pure function
``rates``     the published rates, as decimals
``ledger``    the general ledger, in the application's own schema ``treasury``
``world``     what happens to the accounts: seeded receipts and payments
``bank``      the other side: a process with its own book, which deduplicates by key and loses acks
``client``    how the steps speak with it
``quarter``   runs a quarter: server, bank, workers, kills, the CFO
``proof``     compares the two books, in SQL
============  =================================================================================

``python -m examples.treasury`` runs a quarter; see README.md beside this file.
"""
