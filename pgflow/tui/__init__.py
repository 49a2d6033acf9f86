"""The console in a terminal, over the same questions and verbs as its pages.

``views`` and ``stories`` read what is shown, ``orders`` has what may be done about it, as data that
needs no terminal. ``screen`` shows it, ``live``, and ``asking`` asks before anything is done.
"""
