"""The engines that are measured, one program each: `python -m bench.engines.NAME SCENARIO SIZE`.

Each runs in an environment of its own, in which nothing of pgflow is installed; so these programs
import only the standard library, psycopg, `kit`, `jobs` and the library that they drive.
"""
