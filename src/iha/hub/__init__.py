"""Models for people without this project: a folder that transformers loads, its code included."""
