"""Stages of ICM workspaces in durable runs: what they read and write, who is asked, what is checked
and delivered.
"""
