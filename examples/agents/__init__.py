"""Three agents that act - shopping, travel, treasury - against counterparties that lose replies:
see README.md.
"""
