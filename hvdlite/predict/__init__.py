"""The forecast: what would a training step take with another compressor, on another network, with more ranks?"""
