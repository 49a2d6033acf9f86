"""The vocabulary: units, claims, options, codecs and codes. It imports errors only."""
