"""A learned test of the separation: does gradient descent find what the theorems say that h heads can compute?"""
