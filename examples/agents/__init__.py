"""Agents that act - a loop, shopping, travel, treasury, support - against counterparties that lose
replies: see README.md.
"""
