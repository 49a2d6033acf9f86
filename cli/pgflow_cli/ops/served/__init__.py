"""Parts of ``pgflow serve --files``: workflow files whose runs start by themselves.

`triggers` reads what starts them, `starts` keeps their files frozen as they are now, and makes runs
of events, and `arrivals` sees files that appear, and has all of it go on. Each event has a key, and
so one run.
"""
